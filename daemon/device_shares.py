"""Whether engines that share a GPU ask for more of its memory together than there is."""

from collections.abc import Iterator, Mapping

from daemon.errors import Problem
from daemon.settings_engine import EngineSettings
from daemon.settings_report import Written
from daemon.starter_config import has_nvidia_gpu
from pipelines.config import ModelConfig

_FRACTION = ("kv_cache", "memory_fraction")
_ROUNDING = 1e-9  # 0.3 + 0.3 + 0.4 is all


def check_device_shares(
    engines: Mapping[str, EngineSettings], written: Mapping[str, Written], *, has_gpu: bool | None = None
) -> Iterator[Problem]:
    """Yield a problem for each engine whose fraction is more than those before it have left of their GPU.

    Those count that are sized by a fraction and stay loaded: one with `kv_cache.max_tokens` is sized by that, and one with
    `idle_unload_s` may have the memory to itself. `device: auto` is the first GPU where this machine has one.
    """
    is_gpu_here = has_nvidia_gpu() if has_gpu is None else has_gpu
    taken: dict[str, dict[str, float]] = {}  # by device: fractions by engine
    for name, engine in engines.items():
        device = _gpu_of(engine, has_gpu=is_gpu_here)
        if device is None or engine.kv_cache.max_tokens is not None or engine.idle_unload_s is not None:
            continue
        others, fraction = taken.setdefault(device, {}), engine.kv_cache.memory_fraction
        left = 1 - sum(others.values())
        if others and fraction > left + _ROUNDING:
            theirs = ", ".join(f"{other} has {share:g}" for other, share in others.items())
            yield written[name].problem(
                _FRACTION,
                f"{fraction:g}",
                f"at most {max(left, 0.0):g}: on the same GPU ({device}) {theirs}",
                "divide 1 among them, or give each a kv_cache.max_tokens",
            )
        others[name] = fraction


def _gpu_of(engine: EngineSettings, *, has_gpu: bool) -> str | None:
    """Return the GPU that an engine runs on, None if that is none."""
    device = engine.model.device
    if ModelConfig(engine.model.path).is_fake or device == "cpu" or (device == "auto" and not has_gpu):
        return None
    return device if ":" in device else "cuda:0"
