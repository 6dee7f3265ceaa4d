"""Measures an engine on this machine: workloads, the account of the device's time, the roofline, tables and timelines."""
