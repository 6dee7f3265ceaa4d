"""A POST is over in its time, whatever the server does, and leaves no thread behind."""

import asyncio
import socket
import threading
import time
from contextlib import contextmanager, suppress

import pytest

from daemon.on_done_delivery import DeliveryError, deliver
from daemon.post import post


def threads():
    return [thread for thread in threading.enumerate() if thread.name == "on_done"]


@contextmanager
def server(answer):
    """Give what `answer` yields to whoever connects, a piece each hundredth of a second; yields its URL."""
    is_over = threading.Event()

    def serve(listener):
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                with connection, suppress(OSError):
                    for piece in answer():
                        connection.sendall(piece)
                        if is_over.wait(0.01):
                            break

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
        finally:
            is_over.set()
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def silent():
    while True:
        yield b""


def dribbling():
    yield b"HTTP/1.1 200 OK\r\n"
    while True:
        yield b"X-More: 1\r\n"


def garbage():
    yield b"220 mail.example ready\r\n\r\n"


@pytest.mark.parametrize("answer", [silent, dribbling])
def test_a_server_that_never_comes_to_an_end_is_cut_off(answer):
    """Each byte of it comes in time, so that waiting for the next one alone would go on for ever."""
    with server(answer) as url, pytest.raises(TimeoutError):
        asyncio.run(post(url, b"{}", {}, 0.3))
    deadline_s = time.monotonic() + 30
    while threads():  # it was cut off; the machine may be busy
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def test_who_is_told_has_its_time_and_no_more(tmp_path, monkeypatch):
    monkeypatch.setattr("daemon.on_done_delivery.POST_S", 0.3)
    with server(dribbling) as url, pytest.raises(DeliveryError, match=r"has not answered in 0\.3 s"):
        asyncio.run(deliver((url,), {"id": "batch_1"}, {}, tmp_path))


def test_what_is_no_answer_is_an_error_in_one_line(tmp_path):
    with server(garbage) as url, pytest.raises(DeliveryError, match="cannot be reached") as caught:
        asyncio.run(deliver((url,), {"id": "batch_1"}, {}, tmp_path))
    assert "\n" not in str(caught.value)


def test_whoever_stops_waiting_leaves_nothing_behind():
    """The end of the daemon does not wait for a server."""

    async def give_up(url):
        task = asyncio.create_task(post(url, b"{}", {}, 1000.0))
        await asyncio.to_thread(is_asked.wait, 30)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    is_asked = threading.Event()

    def asked():
        is_asked.set()
        yield from silent()

    with server(asked) as url:
        asyncio.run(give_up(url))
        assert all(thread.daemon for thread in threads())
        for thread in threads():
            thread.join(30)
        assert not threads()
