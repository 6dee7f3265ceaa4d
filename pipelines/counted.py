"""Counts as people say them, for every message that has one."""


def counted(number: int, noun: str) -> str:
    """Return a number and its noun, which is given for one thing: `1 request`, `0 requests`, `1,234 requests`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
