"""Telling of a finished file: what is told, again and again until it is heard, and never at the file's expense."""

import asyncio
import json
import os
import sys
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from daemon import on_done, on_done_delivery
from daemon.on_done import MAX_AT_ONCE, OnDone, Telling, left_notes, note_path, read_note, write_note
from daemon.on_done_delivery import DeliveryError, deliver
from daemon.outbox import FileNames

BATCH = {"id": "batch_1", "status": "completed", "output_file_id": "f.output.jsonl", "error_file_id": None}


def names(folders, stem="f"):
    return FileNames(stem, folders.work / f"{stem}.jsonl", folders.outbox, folders.done, folders.failed)


def noted(folders, target, stem="f", pipeline="p"):
    write_note(names(folders, stem), pipeline, target, json.dumps(BATCH))
    return note_path(names(folders, stem))


def program(tmp_path, text):
    path = tmp_path / "program.py"
    path.write_text(f"import json, os, sys, time\n{text}\n")
    return (sys.executable, str(path))


def tell_all(paths, retry_s=(0.0, 0.0)):
    """Tell everything; return how each ended."""
    endings = []

    async def run():
        on_done = OnDone(lambda _, telling: endings.append(telling), retry_s)
        for path in paths:
            on_done.add(path)
            on_done.add(path)
        await asyncio.gather(*on_done._tasks.values())

    asyncio.run(run())
    return endings


@contextmanager
def server(answers):
    """A web server that gives these status codes in turn; yields its URL and what was posted."""
    posts = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            posts.append((self.path, dict(self.headers), body))
            code = answers[min(len(posts), len(answers)) - 1]
            self.send_response(code)
            if code == 302:
                self.send_header("Location", "/elsewhere")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as http:
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{http.server_port}", posts
        finally:
            http.shutdown()
            thread.join()


def test_a_command_gets_the_batch_object_and_its_files(folders, tmp_path):
    """On standard input and in the environment; nothing goes through a shell."""
    out = tmp_path / "out.json"
    target = program(
        tmp_path,
        "told = {k: v for k, v in os.environ.items() if k.startswith('GAPLESS_')}\n"
        f"json.dump([json.load(sys.stdin), told, sys.argv[1:], os.getcwd()], open({str(out)!r}, 'w'))",
    )
    note = noted(folders, (*target, "$HOME; a b"))
    assert tell_all([note]) == [Telling.DELIVERED]
    batch, told, arguments, cwd = json.loads(out.read_text())
    assert batch == BATCH
    assert arguments == ["$HOME; a b"]
    assert cwd == str(folders.root)
    assert {key: told[key] for key in told if key not in os.environ} == {
        "GAPLESS_PIPELINE": "p",
        "GAPLESS_STEM": "f",
        "GAPLESS_STATUS": "completed",
        "GAPLESS_OUTPUT": str(folders.outbox / "f.output.jsonl"),
        "GAPLESS_ERRORS": "",
        "GAPLESS_REPORT": str(folders.outbox / "f.report.json"),
        "GAPLESS_BATCH": str(folders.outbox / "f.batch.json"),
    }
    assert not note.exists()


def test_a_url_gets_it_by_post_and_is_tried_again_until_it_answers_well(folders):
    """With one and the same key each time, by which a receiver knows a repeat."""
    with server([500, 302, 204]) as (url, posts):
        assert tell_all([noted(folders, (f"{url}/hook?token=x",))]) == [Telling.DELIVERED]
    assert [json.loads(body) for _, _, body in posts] == [BATCH] * 3
    assert {path for path, _, _ in posts} == {"/hook?token=x"}
    assert {headers["Idempotency-Key"] for _, headers, _ in posts} == {"batch_1"}
    assert posts[0][1]["Content-Type"] == "application/json"


def test_what_never_works_is_given_up_counted_and_not_told_again(folders, tmp_path, caplog):
    """Three tries, the last words of the command in the log, no note left."""
    note = noted(folders, program(tmp_path, "print('first\\nno such table', file=sys.stderr); sys.exit(7)"))
    assert tell_all([note]) == [Telling.FAILED]
    assert not note.exists()
    assert caplog.text.count("ended with code 7: no such table") == 3
    assert "is given up" in caplog.text


@pytest.mark.parametrize(
    ("target", "words"),
    [
        (("/no/such/program",), "/no/such/program cannot be started: No such file or directory$"),
        (("http://127.0.0.1:1/",), "cannot be reached"),
        (("http://127.0.0.1:1/?token=secret",), "http://127.0.0.1:1/ cannot be reached"),
    ],
)
def test_what_cannot_even_be_tried_says_why(tmp_path, target, words):
    """In one line, and without what may be a secret."""
    with pytest.raises(DeliveryError, match=words) as caught:
        asyncio.run(deliver(target, BATCH, {}, tmp_path))
    assert "secret" not in str(caught.value)


def _is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except FileNotFoundError:
        return False


def test_a_command_that_hangs_is_killed_with_all_that_it_started(tmp_path, monkeypatch):
    """Its child too, though it holds the pipe open."""
    monkeypatch.setattr(on_done_delivery, "COMMAND_S", 1.0)
    pid_file = tmp_path / "pid"
    target = program(
        tmp_path,
        "import subprocess\nchild = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(100)'])\n"
        f"open({str(pid_file)!r}, 'w').write(str(child.pid))\ntime.sleep(100)",
    )
    with pytest.raises(DeliveryError, match="was killed after 1 s"):
        asyncio.run(deliver(target, BATCH, {}, tmp_path))
    pid = int(pid_file.read_text())
    deadline_s = time.monotonic() + 60
    while _is_alive(pid):  # it was sent the signal; the kernel takes its time on a busy machine
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def test_a_command_that_reads_nothing_and_says_a_lot_does_no_harm(tmp_path):
    """Neither does its input block, nor its output fill the memory."""
    target = program(tmp_path, "sys.stderr.write('x' * 1_000_000)")
    asyncio.run(deliver(target, {"status": "y" * 1_000_000}, {}, tmp_path))


def test_no_more_than_so_many_are_told_at_once(folders, tmp_path):
    """A directory of locks counts who is there together."""
    seats, log = tmp_path / "seats", tmp_path / "log"
    seats.mkdir()
    target = program(
        tmp_path,
        f"seats = {str(seats)!r}\nmine = os.path.join(seats, str(os.getpid()))\nopen(mine, 'w').close()\n"
        f"time.sleep(0.2)\nopen({str(log)!r}, 'a').write(f'{{len(os.listdir(seats))}}\\n')\nos.unlink(mine)",
    )
    notes = [noted(folders, target, f"f{number}") for number in range(3 * MAX_AT_ONCE)]
    assert tell_all(notes) == [Telling.DELIVERED] * len(notes)
    assert max(map(int, log.read_text().split())) <= MAX_AT_ONCE


@pytest.mark.parametrize("pipeline", ["p", "q"])
def test_what_fails_or_hangs_holds_up_nobody_else(folders, pipeline, monkeypatch):
    """As many as may be told at once wait for their next try, or, of another pipeline, hang: one that works is told meanwhile."""
    never, tried = asyncio.Event(), asyncio.Semaphore(0)

    async def deliver(target, *_):
        tried.release()
        if target == ("hangs",):
            await never.wait()
        elif target == ("fails",):
            raise DeliveryError

    monkeypatch.setattr(on_done, "deliver", deliver)
    stopper = "fails" if pipeline == "p" else "hangs"
    notes = [noted(folders, (stopper,), f"a{number}") for number in range(MAX_AT_ONCE)]
    works = noted(folders, ("works",), "b", pipeline)

    async def run():
        telling = OnDone(lambda *_: None, (1000.0,))
        async with asyncio.timeout(30):
            for note in notes:
                telling.add(note)
                await tried.acquire()
            telling.add(works)
            await telling._tasks[works]
        await telling.drain(0.0)

    asyncio.run(run())
    assert left_notes(folders) == notes


def test_stopping_leaves_the_note_for_the_next_start(folders, tmp_path):
    """Between two tries and in the middle of one: neither told, nor forgotten."""
    endings = []
    failing = noted(folders, program(tmp_path, "sys.exit(1)"), "failing")
    hanging = noted(folders, (sys.executable, "-c", "import time; time.sleep(100)"), "hanging")

    async def run():
        on_done = OnDone(lambda _, telling: endings.append(telling), (1000.0,))
        on_done.add(failing)
        on_done.add(hanging)
        await asyncio.sleep(0.5)
        await on_done.drain(0.2)
        assert on_done.num_pending == 0

    asyncio.run(run())
    assert endings == []
    assert left_notes(folders) == [failing, hanging]


def test_a_note_counts_once_its_file_is_published(folders):
    """As long as there is a journal, the file's own run tells."""
    note = noted(folders, ("true",))
    assert read_note(note).batch == BATCH
    (folders.work / "f.journal").write_bytes(b"")
    assert left_notes(folders) == []
    (folders.work / "f.journal").unlink()
    assert left_notes(folders) == [note]


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"target": 1}'])
def test_a_note_that_is_none_is_left_and_said(folders, caplog, text):
    """Somebody's file in work/; nothing is made of it."""
    path = folders.work / "x.on_done"
    path.write_text(text)
    assert tell_all([path]) == []
    assert path.exists()
    assert "cannot be used" in caplog.text
