"""Two hundred edits of a daemon under load: valid ones, mistakes, halves of files, engines that cannot be started."""

import random
import signal

import pytest
from daemon_process import request_lines
from live_config import running, tokens_of

from daemon.reload_files import ReloadFiles, ReloadOrder, ReloadOutcome
from daemon.settings import load_settings

NUM_EDITS = 200
MODELS = ["fake:step_ms=1", "fake:step_ms=1,context=4000", "fake:step_ms=1,context=5000"]
MISTAKES = [("max_tokens: ", "max_tokens: -"), ("engine: e", "engine: nobody"), ("pipelines:", "pipelnes:"), ("{", "[")]
TEXT = """
daemon: {{spool: ./spool, http: {{port: {port}}}, settle_s: 0, rescan_s: {rescan_s}, log: {{format: text}}}}
engines: {{e: {{model: {{path: '{model}'}}, batch: {{max_num_seqs: {max_num_seqs}}}, schedule: {schedule}}}}}
pipelines: {{p: {{engine: e, sampling: {{max_tokens: {max_tokens}}}}}}}
"""


class Editor:
    """Knows what the files should say and what has to hold."""

    def __init__(self, daemon, chance):
        self.daemon, self.chance = daemon, chance
        self.files = ReloadFiles(daemon.folder / "spool")
        self.wanted = {
            "port": 0, "rescan_s": 0.2, "model": MODELS[0], "max_num_seqs": 16, "schedule": "async", "max_tokens": 9,
        }  # fmt: skip
        self.dropped = {}  # stem -> max_tokens at its claim
        self.num_orders = 0
        self.engines = []  # each that was valid

    def write(self, text):
        self.daemon.config.write_text(text)
        return text

    def look(self):
        """Have the daemon look; return what came of it."""
        self.num_orders += 1
        self.files.give_order(ReloadOrder(f"order-{self.num_orders}", cuts_over=self.chance.random() < 0.3))
        self.daemon.process.send_signal(signal.SIGHUP)
        answer = self.daemon.until(self.final_answer, "an answer")
        self.check_effective()
        return answer

    def check_effective(self):
        """What is in effect is what was valid last, of engines that drain what was valid before."""
        (self.daemon.folder / "valid.yaml").write_text(TEXT.format(**self.wanted))
        valid, effective = load_settings([self.daemon.folder / "valid.yaml"]), running(self.daemon)
        self.engines += [valid.engines["e"]]
        assert (effective.daemon, effective.pipelines) == (valid.daemon, valid.pipelines)
        assert effective.engines["e"] in self.engines

    def final_answer(self):
        answer = self.files.read_answer(f"order-{self.num_orders}")
        return answer if answer is not None and answer.outcome is not ReloadOutcome.CHECKING else None

    def edit_live(self):
        self.wanted |= {
            "max_tokens": self.chance.randint(1, 12),
            "rescan_s": self.chance.choice([0.1, 0.2]),
            "schedule": self.chance.choice(["async", "sync"]),
            "max_num_seqs": self.chance.randint(2, 16),
        }
        self.write(TEXT.format(**self.wanted))
        assert self.look().outcome is not ReloadOutcome.REFUSED
        stem = f"f{len(self.dropped)}"
        self.daemon.drop(f"{stem}.jsonl", request_lines(self.chance.randint(1, 60)))
        self.dropped[stem] = self.wanted["max_tokens"]
        self.daemon.until(lambda: self.daemon.batch(stem), f"{stem} is claimed")

    def edit_engine(self):
        self.wanted["model"] = self.chance.choice(MODELS)
        self.write(TEXT.format(**self.wanted))
        assert self.look().outcome is not ReloadOutcome.REFUSED

    def edit_badly(self):
        self.write(TEXT.format(**self.wanted).replace(*self.chance.choice(MISTAKES)))
        assert self.look().outcome is ReloadOutcome.REFUSED

    def edit_what_waits_for_a_restart(self):
        self.write(TEXT.format(**self.wanted | {"port": 9, "max_tokens": 13}))
        assert self.look().outcome is ReloadOutcome.REFUSED

    def write_half(self):
        text = TEXT.format(**self.wanted)
        self.write(text[: self.chance.randrange(len(text) - 3)])
        if self.chance.random() < 0.5:
            assert self.look().outcome is ReloadOutcome.REFUSED
        self.write(text)


@pytest.mark.timeout(300)
def test_two_hundred_edits_under_load_lose_nothing(make_daemon):
    """Each file runs with what was valid at its claim, each request has one result, no edit is applied in part."""
    chance = random.Random(7)
    daemon = make_daemon()
    editor = Editor(daemon, chance)
    editor.write(TEXT.format(**editor.wanted))
    daemon.start()
    daemon.until(lambda: "engine e is ready" in daemon.log.read_text(), "ready")
    edits = [
        editor.edit_live,
        editor.edit_badly,
        editor.write_half,
        editor.edit_what_waits_for_a_restart,
        editor.edit_engine,
    ]
    for edit in chance.choices(edits, weights=[40, 25, 20, 10, 5], k=NUM_EDITS):
        edit()
    editor.write(TEXT.format(**editor.wanted))
    editor.look()
    assert len(editor.dropped) > NUM_EDITS / 4
    for stem, max_tokens in editor.dropped.items():
        batch = daemon.wait_done(stem)
        counts = batch["request_counts"]
        assert (counts["completed"], counts["failed"]) == (counts["total"], 0)
        assert len(daemon.results(stem)) == counts["total"]
        assert tokens_of(daemon, stem) == {max_tokens}
    daemon.until(lambda: running(daemon).engines["e"].model.path == editor.wanted["model"], "the last engine")
    assert daemon.stop() == 0
