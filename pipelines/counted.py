"""Counts as people say them, for every message that has one."""


def counted(number: int, noun: str, separator: str = ",") -> str:
    """Return a number and its noun, which is given for one thing: `1 request`, `0 requests`, `1,234 requests`.

    Where programs may read it too, as in result lines, its digits have no separator.
    """
    return f"{number:{separator}} {noun}" if number == 1 else f"{number:{separator}} {noun}s"
