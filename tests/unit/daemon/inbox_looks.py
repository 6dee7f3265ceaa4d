"""Looks at an inbox at given times, and the claims behind them."""


def take(inbox, now_s, max_files=1000):
    inbox.look(now_s)
    return inbox.claim(max_files, ())


def claims(inbox, now_s):
    return [claimed.name for claimed in take(inbox, now_s)]


def settled(inbox):
    """Look twice, as far apart as it takes, and claim."""
    inbox.look(0.0)
    return take(inbox, 9.0)
