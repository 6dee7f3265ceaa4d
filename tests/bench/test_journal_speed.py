"""How fast results go through journal and outbox on one core; run with `make bench`."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from daemon.journal import Journal
from daemon.journal_records import Header, LineNumbers, Sealed
from daemon.made_with import MadeWith
from daemon.outbox import FileNames, Publisher, partial_output
from daemon.request_record import Url
from daemon.result_line import LineBuilder, LineFormat
from pipelines.core.request import Choice, FinishReason, RequestOutput

NUM_REQUESTS = 200_000
GROUP = 2_000  # results that share a sync
FILES = 100


def timed(what: str, count: int, action: Callable[[], object]) -> float:
    """Run and print a row; return the rate a second of CPU time, which waiting for the disk is no part of."""
    start_s, start_cpu_s = time.perf_counter(), time.process_time()
    action()
    wall_s, cpu_s = time.perf_counter() - start_s, time.process_time() - start_cpu_s
    print(
        f"{what:<34} {count / wall_s:>10,.0f} /s   {count / cpu_s:>10,.0f} / CPU-s   {1e6 * wall_s / count:6.2f} us each"
    )
    return count / wall_s


def names_of(root: Path, stem: str) -> FileNames:
    """Return a claimed file in fresh folders."""
    folders = [root / name for name in ("work", "outbox", "done", "failed")]
    for folder in folders:
        folder.mkdir(exist_ok=True)
    path = folders[0] / f"{stem}.jsonl"
    path.write_bytes(b"x\n")
    return FileNames(stem, path, *folders[1:])


@pytest.mark.bench
@pytest.mark.timeout(300)
@pytest.mark.parametrize("in_input_order", [True, False])
def test_results_through_journal_and_outbox(tmp_path: Path, in_input_order: bool) -> None:
    """Build the line, append, sync in groups, copy into the partial file, publish; then open such a journal again."""
    print(f"\n{NUM_REQUESTS:,} results of about 600 bytes, a sync every {GROUP:,}, input order: {in_input_order}")
    names = names_of(tmp_path, "in")
    builder = LineBuilder("f" * 64, 1_700_000_000, MadeWith("SmolLM2-135M-Instruct", "0123456789"), LineFormat.BATCH)
    choice = Choice("The capital of France is Paris. " * 4, FinishReason.STOP, 32)
    output = RequestOutput(key=0, choices=(choice,), num_prompt_tokens=30, num_cached_tokens=0)
    lines: list[bytes] = []

    def build() -> None:
        lines.extend(builder.result(index, f"request-{index}", Url.CHAT, output) for index in range(NUM_REQUESTS))

    timed("build the lines", NUM_REQUESTS, build)
    journal = Journal.create(names.journal, Header("f", 1, "in.jsonl", 1, 1, "m", {}))
    journal.append_started(1, NUM_REQUESTS)
    partial = partial_output(journal, names, in_input_order=in_input_order)

    def record() -> None:
        for start in range(0, NUM_REQUESTS, GROUP):
            for index in reversed(range(start, start + GROUP)):
                journal.append_result(index, lines[index], LineNumbers.of_output(output))
            journal.sync()
            partial.advance()

    timed("append, sync, copy", NUM_REQUESTS, record)
    journal.append_sealed(Sealed("{}\n", "{}\n"))
    journal.sync()

    def reopen() -> None:
        opened, recovery = Journal.open(names.journal)
        opened.close()
        assert recovery.num_lines == NUM_REQUESTS

    timed("open the journal again", NUM_REQUESTS, reopen)
    again = partial_output(journal, names, in_input_order=in_input_order)
    timed("copy again, as after a restart", NUM_REQUESTS, again.advance)
    publisher = Publisher(journal, names, again)
    timed("publish", 1, publisher.publish)
    assert names.lines.stat().st_size == sum(map(len, lines))


@pytest.mark.bench
def test_small_files(tmp_path: Path) -> None:
    """Files of one request each: what the syncs of one file cost."""

    def publish_all() -> None:
        for number in range(FILES):
            names = names_of(tmp_path, f"in{number}")
            journal = Journal.create(names.journal, Header("f", 1, "in.jsonl", 1, 1, "m", {}))
            journal.append_started(1, 1)
            journal.append_result(0, b"{}\n", LineNumbers())
            journal.append_sealed(Sealed("{}\n", "{}\n"))
            Publisher(journal, names, partial_output(journal, names, in_input_order=True)).publish()

    print()
    timed("files of one request", FILES, publish_all)
