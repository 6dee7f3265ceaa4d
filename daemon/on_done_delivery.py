"""One try to tell of a file: a command gets its Batch object on standard input, a URL by POST."""

import asyncio
import http.client
import os
import signal
import urllib.error
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from daemon import __version__
from daemon.durable import printable
from daemon.json_text import json_document
from daemon.post import post

COMMAND_S = 60.0  # a command that runs longer is killed with all that it started
POST_S = 30.0  # in which a server has to have answered
_TAIL_BYTES = 4096
_CLOSING_S = 1.0  # for what a command wrote last, though something that it started keeps the pipe open


class DeliveryError(Exception):
    """It did not work; the text says why in one line."""


def is_url(target: Sequence[str]) -> bool:
    """Whether this is a URL and no command."""
    return len(target) == 1 and target[0].startswith(("http://", "https://"))


async def deliver(
    target: Sequence[str], batch: Mapping[str, Any], environment: Mapping[str, str], folder: Path
) -> None:
    """Tell a command (run in `folder`) or a URL.

    Raises:
        DeliveryError: it did not work; trying again may help.
    """
    if is_url(target):
        await _post(target[0], json_document(batch), str(batch.get("id", "")))
    else:
        await _run(target, json_document(batch), environment, folder)


async def _run(target: Sequence[str], data: bytes, environment: Mapping[str, str], folder: Path) -> None:
    name = printable(target[0])
    try:
        process = await asyncio.create_subprocess_exec(
            *target,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            cwd=folder,
            env=os.environ | environment,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or error
        raise DeliveryError(f"{name} cannot be started: {why}") from error
    tail = bytearray()
    reading = asyncio.create_task(_keep_tail(process.stderr, tail))
    writing = asyncio.create_task(_write(process.stdin, data))
    try:
        async with asyncio.timeout(COMMAND_S):
            code = await process.wait()
        await asyncio.wait([reading], timeout=_CLOSING_S)
    except TimeoutError:
        raise DeliveryError(f"{name} was killed after {COMMAND_S:g} s") from None
    finally:
        reading.cancel()
        writing.cancel()
        if process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    if code:
        lines = tail.decode("utf-8", "replace").strip().splitlines()
        last = f": {printable(lines[-1])}" if lines else ""
        raise DeliveryError(f"{name} ended with code {code}{last}")


async def _write(stream: asyncio.StreamWriter | None, data: bytes) -> None:
    """Give a command its input; one that does not read it is as good."""
    if stream is not None:
        with suppress(ConnectionError):
            stream.write(data)
            await stream.drain()
        stream.close()


async def _keep_tail(stream: asyncio.StreamReader | None, tail: bytearray) -> None:
    """Keep the last of what a command complains of, however much it is."""
    while stream is not None and (data := await stream.read(_TAIL_BYTES)):
        tail += data
        del tail[:-_TAIL_BYTES]


async def _post(url: str, data: bytes, batch_id: str) -> None:
    shown = printable(url.partition("?")[0])  # what stands behind may be a secret
    headers = {
        "Content-Type": "application/json",
        "User-Agent": f"gapless/{__version__}",
        "Idempotency-Key": batch_id,
    }
    try:
        await post(url, data, headers, POST_S)
    except urllib.error.HTTPError as error:
        error.close()
        raise DeliveryError(f"{shown} answered {error.code} {printable(error.reason or '')}".strip()) from error
    except TimeoutError:
        raise DeliveryError(f"{shown} has not answered in {POST_S:g} s") from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        raise DeliveryError(f"{shown} cannot be reached: {printable(str(reason))}") from error
