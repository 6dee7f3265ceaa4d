"""Runs Gapless and vLLM in turns on one GPU: the same token ids in, as many out, both loaded all the time.

Run as a program, where vLLM is installed or lies in a folder (`--site`): `PYTHONPATH=. python tests/bench/beside_vllm.py --help`.
Each engine has a process of its own, which rests while the other one runs. A run counts from handing over all prompts to the
last token; loading and warm-up are not in it. Neither engine finds anything of an earlier run in a prefix cache.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from functools import reduce
from itertools import product
from pathlib import Path
from statistics import median

from pipelines.benchmark.workload import WorkloadName, build_workload, round_up

ENGINES = ("gapless", "vllm")
MAX_SEQS = 256
LIMIT_S = 600  # of one run


def run_gapless(options, folder):
    """Load, then run what is asked for, a line each."""
    from pipelines.benchmark.measure import measure, warm_up
    from pipelines.benchmark.settings import apply_setting
    from pipelines.benchmark.subject import open_subject, random_model
    from pipelines.config import BatchConfig, Dtype, EngineConfig, KvCacheConfig, ModelConfig, Schedule

    config = EngineConfig(
        "beside",
        ModelConfig("", dtype=Dtype.BFLOAT16, device="cuda"),
        batch=BatchConfig(MAX_SEQS, 8192),
        kv_cache=KvCacheConfig(max_tokens=options.cache_tokens),
        max_context=options.context,
    )
    config = random_model(reduce(apply_setting, options.set, config), options.config, folder)
    with open_subject(config, folder, None) as subject:
        say(ready=subject.detail)
        for name, scale in asked():
            requests = build_workload(name, scale or 1.0).requests(subject.vocab_size)
            if scale is None:
                warm_up(subject, requests, 32)
                say()
                continue
            run = measure(subject, requests, Schedule.ASYNC)
            say(seconds=run.seconds, tokens=run.num_tokens)


def run_vllm(options, folder):
    """Likewise; a line has to come before the engine may take memory."""
    if options.site:
        site = options.site.resolve()
        sys.path[:0] = [str(site), str(site / "stubs")]
        sys.path.append(str(site / "fallback"))
        os.environ["PYTHONPATH"] = os.pathsep.join([str(site), str(site / "stubs"), os.environ.get("PYTHONPATH", "")])
    alone = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "VLLM_USE_FLASHINFER_SAMPLER": "0"}
    network = {"VLLM_HOST_IP": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
    for name, value in (alone | network).items():
        os.environ.setdefault(name, value)
    (folder / "config.json").write_text(options.config.read_text())
    import vllm

    say(loaded=vllm.__version__)
    next(asked())
    engine = vllm.LLM(
        model=str(folder),
        skip_tokenizer_init=True,
        load_format="dummy",
        dtype="bfloat16",
        seed=0,
        max_model_len=options.context,
        max_num_seqs=MAX_SEQS,
        gpu_memory_utilization=options.vllm_memory,
        enable_prefix_caching=False,
        async_scheduling=True,
        generation_config="vllm",
        **({"max_num_batched_tokens": options.vllm_tokens} if options.vllm_tokens else {}),
    )

    def generate(prompts, counts):
        sampling = [
            vllm.SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=count, detokenize=False)
            for count in counts
        ]
        given = [{"prompt_token_ids": list(prompt)} for prompt in prompts]
        started_s = time.perf_counter()
        outputs = engine.generate(given, sampling, use_tqdm=False)
        return time.perf_counter() - started_s, sum(len(output.outputs[0].token_ids) for output in outputs)

    say(ready=f"vLLM {vllm.__version__}")
    for name, scale in asked():
        workload = build_workload(name, scale or 1.0)
        if scale is None:
            generate(workload.prompts[:MAX_SEQS], [32] * len(workload.prompts[:MAX_SEQS]))
            say()
            continue
        seconds, tokens = generate(workload.prompts, workload.new_tokens)
        say(seconds=seconds, tokens=tokens)


def asked():
    """Yield (workload, scale) of each line that comes; a scale of None is a warm-up."""
    for line in sys.stdin:
        yield tuple(json.loads(line))


def say(**record):
    print("SAID " + json.dumps(record), flush=True)


class Child:
    """One engine's process."""

    def __init__(self, engine, folder):
        self.engine = engine
        command = [sys.executable, __file__, *sys.argv[1:], "--engine", engine, "--folder", str(folder)]
        self.log = (Path(folder) / "log").open("w+")
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True, bufsize=1
        )

    def hear(self):
        for line in self._process.stdout:
            if line.startswith("SAID "):
                return json.loads(line.removeprefix("SAID "))
        self.log.seek(0)
        raise SystemExit(f"{self.engine} ended; its log ends with:\n{self.log.read()[-3000:]}")

    def ask(self, name="", scale=None):
        self._process.stdin.write(json.dumps([name, scale]) + "\n")
        self._process.stdin.flush()

    def run(self, name, scale=None):
        self.ask(name, scale)
        return self.hear()

    def end(self):
        self._process.stdin.close()
        self._process.terminate()
        self._process.wait(LIMIT_S)


def compare(options):
    plan = [(WorkloadName(name), float(scale), int(count)) for name, scale, count in options.run]
    longest = max(build_workload(name, scale).context for name, scale, _ in plan)
    options.context = options.context or round_up(longest + 64)
    sys.argv += ["--context", str(options.context)]
    findings = []
    with tempfile.TemporaryDirectory() as place:
        folders = [Path(place) / engine for engine in ENGINES]
        for folder in folders:
            folder.mkdir()
        ours, theirs = children = [Child(*each) for each in zip(ENGINES, folders, strict=True)]
        print(ours.hear()["ready"], flush=True)  # with all its memory, before the other one measures what is free
        theirs.hear()
        theirs.ask()
        print(theirs.hear()["ready"], flush=True)
        for child, name in product(children, dict.fromkeys(name for name, *_ in plan)):
            child.run(name)
        for name, scale, count in plan:
            workload = build_workload(name, scale)
            seconds = {engine: [] for engine in ENGINES}
            for _ in range(count):
                for child in children:
                    said = child.run(name, scale)
                    if said["tokens"] != workload.num_new_tokens:
                        raise SystemExit(f"{child.engine} gave {said['tokens']} tokens, not {workload.num_new_tokens}")
                    seconds[child.engine].append(round(said["seconds"], 3))
                    print(f"{name} at scale {scale:g}, {child.engine}: {said['seconds']:.2f} s", flush=True)
            ratio = median(seconds["gapless"]) / median(seconds["vllm"])
            findings.append({"workload": name, "scale": scale, "seconds": seconds, "ratio": ratio})
            print(f"{name} at scale {scale:g}: gapless over vLLM {ratio:.3f}, medians of {count}", flush=True)
            if options.json:
                options.json.write_text(json.dumps(findings, indent=1))
        for child in children:
            child.end()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--config", type=Path, required=True, help="a model's config.json; its weights are made by chance"
    )
    parser.add_argument(
        "--run",
        nargs=3,
        action="append",
        default=[],
        metavar=("WORKLOAD", "SCALE", "TIMES"),
        help="rollouts or offline, the factor of new tokens, how often; several times",
    )
    parser.add_argument("--site", type=Path, help="folder with an unpacked vLLM, if it is not installed")
    parser.add_argument("--cache-tokens", type=int, default=350_000, help="of our KV cache")
    parser.add_argument("--vllm-memory", type=float, default=0.45, help="share of the GPU for vLLM")
    parser.add_argument("--vllm-tokens", type=int, help="its max_num_batched_tokens")
    parser.add_argument("--set", action="append", default=[], help="a key of our engine, as of `gapless bench`")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--context", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--engine", choices=ENGINES, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    match options.engine:
        case "gapless":
            run_gapless(options, options.folder)
        case "vllm":
            run_vllm(options, options.folder)
        case _:
            compare(options)


if __name__ == "__main__":
    main()
