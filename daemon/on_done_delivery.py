"""One try to tell of a file: a command gets its Batch object on standard input, a URL by POST."""

import asyncio
import http.client
import os
import signal
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from daemon import __version__
from daemon.durable import printable
from daemon.json_text import json_document

COMMAND_S = 60.0  # a command that runs longer is killed with all that it started
POST_S = 30.0  # in which a server has to answer
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
        thread = ThreadPoolExecutor(1, "on_done")  # not one that the disk's work needs: servers may be silent for long
        try:
            data, batch_id = json_document(batch), str(batch.get("id", ""))
            await asyncio.get_running_loop().run_in_executor(thread, _post, target[0], data, batch_id)
        finally:
            thread.shutdown(wait=False)
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
        raise DeliveryError(f"{name} cannot be started: {error}") from error
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


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirected POST would become a GET without its content: say so instead."""

    def redirect_request(  # noqa: PLR0917  the base class's signature
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
        newurl: str,
    ) -> None:
        """Follow none; the answer is then an error like any other."""


def _post(url: str, data: bytes, batch_id: str) -> None:
    shown = printable(url.partition("?")[0])  # what stands behind may be a secret
    headers = {
        "Content-Type": "application/json",
        "User-Agent": f"gapless/{__version__}",
        "Idempotency-Key": batch_id,
    }
    request = urllib.request.Request(url, data, headers, method="POST")  # noqa: S310  http and https alone, see `is_url`
    try:
        with urllib.request.build_opener(_NoRedirect).open(request, timeout=POST_S) as response:
            response.read(1)
    except urllib.error.HTTPError as error:
        error.close()
        raise DeliveryError(f"{shown} answered {error.code} {printable(error.reason or '')}".strip()) from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        raise DeliveryError(f"{shown} cannot be reached: {printable(str(reason))}") from error
