"""A real daemon in a folder of its own, driven as a person would: by files, signals and HTTP."""

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path

from forked import start_module
from waiting import wait_until

DEADLINE_S = 90.0
FAKE = "fake:step_ms=1,eos_every=40"


class Daemon:
    """`gapless run` on one pipeline `p` with one engine `e`; `program` is what runs it in place of the command line.

    One that `is_forked` starts quicker, see `forked`; what is measured has a Python of its own.
    """

    def __init__(
        self, folder, model=FAKE, engine="", pipeline="", daemon="", program=("-m", "daemon.cli"), is_forked=False
    ):
        self.folder = Path(folder)
        self.program = program
        self.is_forked = is_forked
        self.config = self.folder / "gapless.yaml"
        self.config.write_text(
            f"daemon: {{spool: ./spool, http: {{port: 0}}, settle_s: 0.05, rescan_s: 0.2, log: {{format: text}}{daemon}}}\n"
            f"engines: {{e: {{model: {{path: '{model}'}}, batch: {{max_num_seqs: 16}}{engine}}}}}\n"
            f"pipelines: {{p: {{engine: e, sampling: {{max_tokens: 16}}{pipeline}}}}}\n"
        )
        self.root = self.folder / "spool" / "p"
        self.log = self.folder / "log"
        self.process = None
        self._log_start = 0
        self._num_forked = 0

    def start(self, *options):
        self.inbox.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self._log_start = log.tell()
            self.process = self._start_process(["run", *options, str(self.config)], log)
        return self

    def _start_process(self, arguments, log):
        """Each has another hash seed than the one before it: what it makes may not depend on that."""
        environment = os.environ | {"GAPLESS_TRACEBACK": "1"}
        if self.is_forked and self.program[0] == "-m":
            server, self._num_forked = self._num_forked % 2, self._num_forked + 1
            return start_module(
                *self.program[1:],
                *arguments,
                cwd=Path.cwd(),
                environment=environment,
                streams=(subprocess.DEVNULL, 1, log),
                server=server,
            )
        return subprocess.Popen([sys.executable, *self.program, *arguments], stderr=log, env=environment)

    @property
    def inbox(self):
        return self.root / "inbox"

    @property
    def outbox(self):
        return self.root / "outbox"

    def drop(self, name, content):
        """Drop a file in one go."""
        data = content if isinstance(content, bytes) else content.encode()
        self.inbox.mkdir(parents=True, exist_ok=True)
        (self.inbox / f".{name}.tmp").write_bytes(data)
        (self.inbox / f".{name}.tmp").rename(self.inbox / name)

    def until(self, condition, what):
        """Wait until `condition()` is true, and return what it gives."""
        return wait_until(condition, what, deadline_s=DEADLINE_S, log=self.log)

    def batch(self, stem):
        """The live Batch object, or None."""
        try:
            return json.loads((self.outbox / f"{stem}.batch.json").read_text())
        except FileNotFoundError:
            return None

    def status(self):
        """What it says of its pipeline."""
        return json.loads(self.get("/status"))["pipelines"][0]

    def wait_paused(self, cause):
        """Wait until status and metrics say that the pipeline is paused; return the reason."""
        reason = self.until(lambda: self.status()["paused_because"], "paused")
        sample = f'gapless_pipeline_paused{{cause="{cause}",pipeline="p"}} 1.0'
        self.until(lambda: sample in self.get("/metrics"), f"a metric that says {cause}")
        self.until(lambda: "takes no files" in self.log.read_text(), "the log says so")
        return reason

    def wait_going_on(self):
        """Wait until it is no longer paused."""
        self.until(lambda: self.status()["paused_because"] is None, "going on")
        self.until(lambda: "} 1.0" not in "".join(self._pauses()), "no metric that says paused")
        self.until(lambda: "pipeline p goes on" in self.log.read_text(), "the log says so")

    def _pauses(self):
        return [line for line in self.get("/metrics").splitlines() if line.startswith("gapless_pipeline_paused{")]

    def wait_done(self, stem):
        """Wait until a file is published and its input has moved; return its Batch object.

        The Batch object is looked for first: from when it is there until the end the input is in work/.
        """
        self.until(lambda: self.batch(stem) and not list((self.root / "work").glob(f"{stem}.*")), f"{stem} done")
        return self.batch(stem)

    def lines(self, name):
        path = self.outbox / name
        return [json.loads(line) for line in path.read_bytes().split(b"\n") if line] if path.exists() else []

    def results(self, stem):
        """All lines of output and errors by custom_id; each request may be there once only."""
        lines = self.lines(f"{stem}.output.jsonl") + self.lines(f"{stem}.errors.jsonl")
        ids = [line["custom_id"] for line in lines]
        assert len(ids) == len(set(ids)), "a request has two results"
        return {line["custom_id"]: line for line in lines}

    def children(self):
        """The pids of its text and engine process."""
        return dict(self.workers())

    def workers(self):
        """Role and pid of each process of its engines."""
        found = []
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and f"PPid:\t{self.process.pid}\n" in (entry / "status").read_text():
                    words = (entry / "cmdline").read_bytes().split(b"\0")
                    if b"pipelines.worker" in words:
                        found.append((words[words.index(b"pipelines.worker") + 1].decode(), int(entry.name)))
            except OSError:
                continue
        return found

    def kill_child(self, role):
        pid = self.until(lambda: self.children().get(role), f"{role} process up")
        os.kill(pid, signal.SIGKILL)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def kill_all(self):
        """Kill daemon, engine and text process within a moment; return how many there were."""
        pids = [self.process.pid, *self.children().values()]
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        return len(pids)

    def tear_journals(self, chance):
        """While no daemon runs: let each journal end in a record that was not written whole; return the bytes added."""
        num_bytes = 0
        for path in (self.root / "work").glob("*.journal"):
            tail = chance.choice([b"\x40\0\0\0", b"\xff" * 30, chance.randbytes(chance.randint(1, 600)), b"\0" * 512])
            with suppress(OSError), path.open("ab", buffering=0) as file:  # the disk may be full
                num_bytes += file.write(tail)
        return num_bytes

    def stop(self, number=signal.SIGTERM):
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(DEADLINE_S)

    def port(self):
        marker = "http://127.0.0.1:"

        def find():
            text = self.log.read_bytes()[self._log_start :].decode()  # of this process, not of one before it
            return marker in text and int(text.rsplit(marker, 1)[1].split("/")[0])

        return self.until(find, "HTTP server up")

    def get(self, path):
        try:
            response = urllib.request.urlopen(f"http://127.0.0.1:{self.port()}{path}", timeout=10)
        except urllib.error.HTTPError as error:
            response = error  # 503 has a body too
        with response:
            return response.read().decode()


def request_lines(count, **body):
    """A Batch file of `count` chat requests."""
    lines = []
    for number in range(count):
        fields = {"model": "m", "messages": [{"role": "user", "content": f"Question {number}"}]} | body
        line = {"custom_id": f"r{number}", "method": "POST", "url": "/v1/chat/completions", "body": fields}
        lines.append(json.dumps(line) + "\n")
    return "".join(lines)
