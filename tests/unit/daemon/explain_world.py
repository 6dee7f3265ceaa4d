"""A spool of two pipelines, files anywhere in it, and what `explain` says of one."""

import json
import os
import time
from pathlib import Path

from daemon.batch_object import BatchInfo, BatchObject
from daemon.explain import explain
from daemon.folders import Folders
from daemon.journal import Journal
from daemon.journal_records import Header, LineNumbers
from daemon.settings import load_settings

CONFIG = """
daemon: {spool: ./spool, settle_s: 5, rescan_s: 3}
engines: {e: {model: {path: 'fake:'}}}
pipelines: {p: {engine: e}, q: {engine: e}}
"""


class Case:
    """A spool with the folders of two pipelines, and what a daemon there would say."""

    def __init__(self, root):
        (root / "gapless.yaml").write_text(CONFIG)
        self.settings = load_settings([root / "gapless.yaml"])
        self.spool = root / "spool"
        self.p, self.q = Folders(self.spool / "p"), Folders(self.spool / "q")
        self.p.make()
        self.q.make()
        self.said = {"engines": [], "pipelines": []}

    def drop(self, name="f.jsonl", age_s=60.0, folders=None):
        path = (folders or self.p).inbox / name
        path.write_text("x")
        self.age(path, age_s)
        return path

    def age(self, path, age_s):
        """Let it be changed so long ago, as far as a person can make it: what the kernel notes is now."""
        os.utime(path, (time.time() - age_s, time.time() - age_s))

    def say(self, given="f.jsonl"):
        return str(explain(self.settings, Path(given), lambda: self.said))

    def journal(self, stem="f", num_requests=3, num_lines=0, source="f.jsonl"):
        journal = Journal.create(self.p.work / f"{stem}.journal", Header("f" * 64, 1, source, 1, 1, "m", {}))
        if num_requests is not None:
            journal.append_started(1, num_requests)
        for index in range(num_lines):
            journal.append_result(index, b"{}\n", LineNumbers())
        journal.sync()
        return journal

    def batch(self, status, stem="f", source="f.jsonl", completed=2, failed=1):
        batch = BatchObject(BatchInfo(stem, source, "p", "m", "/v1/completions", 1), time.time).as_dict()
        batch |= {
            "status": status,
            "request_counts": {"total": completed + failed, "completed": completed, "failed": failed},
        }
        (self.p.outbox / f"{stem}.batch.json").write_text(json.dumps(batch))
