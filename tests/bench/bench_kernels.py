"""Measures the Triton kernels on the shapes of Llama-3.1-8B against what the memory and cuBLAS reach; run by hand on a GPU.

    PYTHONPATH=. python tests/bench/bench_kernels.py [--sweep] [--rival FILE] [decode] [prefill] [linear] [many] [step] [small]

All times are medians of replays of a CUDA graph. Each decode case goes over 32 layers' own pages, each projection over copies
of its weight, so that the L2 does not help. Errors are against float32. `--sweep` tries other tilings, compiled beforehand by a
process a core; `--rival` measures another file's `attend_decodes` beside ours.
"""

import argparse
import itertools
import os
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context

import torch
from kernel_attention import bench_decode, bench_prefill, decode_cuts, prefill_cuts, warm_decode, warm_prefill
from kernel_projections import bench_linear, bench_many, linear_cuts, warm_linear
from kernel_step import bench_small, bench_step, warm_step
from kernel_timing import WEIGHTS


def warm_tasks(parts: set[str], rival: str | None, *, sweep: bool) -> Iterable[Callable[[], None]]:
    """What the tables need compiled."""
    decodes = decode_cuts(rival, sweep=sweep) if "decode" in parts else []
    yield from (partial(warm_decode, cut) for cut in {(cut.tiling, cut.rival): cut for cut in decodes}.values())
    yield from (partial(warm_prefill, cut) for cut in (prefill_cuts(sweep=sweep) if "prefill" in parts else ()))
    yield from (
        partial(warm_step, batch, each) for batch in (1, 32, 64, 128) for each in (False, True) if "step" in parts
    )
    for name in WEIGHTS if "linear" in parts else ():
        for num_tokens, dependent in itertools.product((1, 32, 64, 128), (False, True)):
            tried = sweep and dependent and num_tokens > 1
            for cut in linear_cuts(name, num_tokens, sweep=tried):
                yield partial(warm_linear, name, num_tokens, cut, dependent)


def attempt(task: Callable[[], None]) -> None:
    try:
        task()
    except Exception as problem:  # noqa: BLE001  the table says it again, in its place
        print(f"compiling: {str(problem).splitlines()[0][:90]}", file=sys.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", default=["decode", "prefill", "linear", "many", "step", "small"])
    parser.add_argument("--sweep", action="store_true", help="try other tilings")
    parser.add_argument("--rival", metavar="FILE", help="another attend_decodes")
    args = parser.parse_args()
    parts = set(args.parts)
    with ProcessPoolExecutor(min(15, os.cpu_count() or 1), mp_context=get_context("spawn")) as pool:
        list(pool.map(attempt, warm_tasks(parts, args.rival, sweep=args.sweep)))
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}", flush=True)
    if "decode" in parts:
        bench_decode(decode_cuts(args.rival, sweep=args.sweep))
    if "prefill" in parts:
        bench_prefill(prefill_cuts(sweep=args.sweep))
    if "linear" in parts:
        bench_linear(sweep=args.sweep)
    if "many" in parts:
        bench_many()
    if "step" in parts:
        bench_step()
    if "small" in parts:
        bench_small()


if __name__ == "__main__":
    main()
