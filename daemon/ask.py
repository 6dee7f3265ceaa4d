"""Asking the running daemon over HTTP what it is doing."""

import json
import urllib.error
import urllib.request
from typing import Any

from daemon.address import address_of, read_token
from daemon.durable import printable
from daemon.errors import NotRunningError
from daemon.settings import Settings
from daemon.spool_lock import holder_of

_TIMEOUT_S = 5.0


def fetch_status(settings: Settings) -> dict[str, Any]:
    """Return what the running daemon says of itself.

    Raises:
        NotRunningError: it does not answer.
        StorageError: the token's file cannot be read.
    """
    spool = settings.daemon.spool
    url = address_of(spool, settings.daemon.http)
    request = urllib.request.Request(f"{url}/status")  # noqa: S310  our own address
    if settings.daemon.http.token_file is not None:
        request.add_header("Authorization", f"Bearer {read_token(settings.daemon.http.token_file)}")
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as response:  # noqa: S310  our own address
            answer: dict[str, Any] = json.load(response)
            return answer
    except urllib.error.HTTPError as error:
        with error:
            said = error.read().decode(errors="replace").strip() or error.reason
        raise NotRunningError(f"the daemon at {url}/ says nothing of itself: {said}") from error
    except (OSError, ValueError) as error:
        if (pid := holder_of(spool)) is None:
            text = f"no daemon answers: none runs on {printable(spool)}; `gapless run` starts one"
        else:
            who = f"pid {pid} " if pid else "one "
            text = f"no daemon answers at {url}/: {_reason(error)}; {who}runs on {printable(spool)}: `gapless doctor` says more"
        raise NotRunningError(text) from error


def why_silent(settings: Settings) -> str | None:
    """Say why the daemon that holds the spool does not say that its loop runs; None if it does. It asks for no token."""
    url = address_of(settings.daemon.spool, settings.daemon.http)
    try:
        with urllib.request.urlopen(f"{url}/healthz", timeout=_TIMEOUT_S):  # noqa: S310  our own address
            return None
    except urllib.error.HTTPError as error:
        with error:
            return f"{url}/healthz: {error.read().decode(errors='replace').strip()}"
    except (OSError, ValueError) as error:
        return f"no daemon answers at {url}/: {_reason(error)}"


def _reason(error: Exception) -> str:
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    return (reason.strerror if isinstance(reason, OSError) else None) or str(reason)
