"""Gapless: the service that takes files in and puts results out. Nothing here imports torch."""

__version__ = "0.1.0"
