"""The doctor's look at the machine: memory, GPU and driver, torch, inotify, open files."""

import ctypes
import errno
import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from daemon.doctor import Finding, as_gib, fail, ok, warn
from daemon.settings import Settings

Run = Callable[[Sequence[str]], str]  # runs a program and returns its standard output; OSError if it does not work

_LEAST_MEMORY_BYTES = 2 << 30
_LEAST_INSTANCES = 16
_LEAST_OPEN_FILES = 1024
_PROGRAM_S = 120.0
_TORCH = """
import json, torch
count = torch.cuda.device_count() if torch.cuda.is_available() else 0
names = [torch.cuda.get_device_name(index) for index in range(count)]
print(json.dumps({"version": torch.__version__, "cuda": torch.version.cuda, "devices": names}))
"""


def run_program(words: Sequence[str]) -> str:
    """Run a program to its end.

    Raises:
        OSError: there is none, it fails, or it takes too long; the text is its last word.
    """
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=_PROGRAM_S, check=False)  # noqa: S603  ours
    except subprocess.TimeoutExpired as error:
        raise OSError(errno.ETIMEDOUT, f"no answer within {_PROGRAM_S:.0f} s") from error
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip() or f"code {done.returncode}").splitlines()
        raise OSError(errno.EIO, said[-1])
    return done.stdout


def look_at_machine(settings: Settings | None, run: Run = run_program, proc: Path = Path("/proc")) -> Iterator[Finding]:
    """Yield what there is to say of the machine."""
    yield look_at_memory(proc)
    gpus = gpu_names(run)
    yield look_at_gpu(settings, gpus, proc)
    yield look_at_torch(run, has_gpu=bool(gpus))
    yield look_at_inotify(proc)
    yield look_at_open_files()


def look_at_memory(proc: Path) -> Finding:
    """Say how much memory is free."""
    try:
        lines = (proc / "meminfo").read_text(encoding="ascii").splitlines()
        kib = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines)}
        free, total = kib["MemAvailable"] * 1024, kib["MemTotal"] * 1024
    except (OSError, ValueError, KeyError, IndexError):
        return warn("memory", "unknown", f"{proc / 'meminfo'} cannot be read")
    text = f"{as_gib(free)} of {as_gib(total)} are free"
    if free < _LEAST_MEMORY_BYTES:
        return warn("memory", text, "a model of 1 GB or more will not fit beside torch: end other programs")
    return ok("memory", text)


def gpu_names(run: Run) -> list[str]:
    """Return the GPUs that the driver shows, each with driver version, memory and what is taken of it."""
    query = "--query-gpu=name,driver_version,memory.total,memory.used"
    try:
        lines = run(("nvidia-smi", query, "--format=csv,noheader")).splitlines()
    except OSError:
        return []
    rows = [[part.strip() for part in line.split(",")] for line in lines if line.strip()]
    return [f"{row[0]}, driver {row[1]}, {row[3]} of {row[2]} taken" for row in rows if len(row) == 4]  # noqa: PLR2004  as asked


def look_at_gpu(settings: Settings | None, gpus: Sequence[str], proc: Path) -> Finding:
    """Say which GPUs there are, and whether an engine wants one that is not there."""
    if gpus:
        return ok("gpu", "; ".join(f"{number}: {text}" for number, text in enumerate(gpus)))
    wanting = [name for name, engine in settings.engines.items() if "cuda" in engine.model.device] if settings else []
    has_driver = (proc / "driver" / "nvidia" / "version").exists()
    what = "the driver is loaded, but nvidia-smi shows no GPU" if has_driver else "no NVIDIA driver is loaded"
    if wanting:
        advice = f"install the driver, or set engines.{wanting[0]}.model.device to cpu"
        return fail("gpu", f"{what}, and engine {wanting[0]} wants one", advice)
    return warn("gpu", f"{what}: models run on the CPU", "fine for a small model; a large one wants a GPU")


def look_at_torch(run: Run, *, has_gpu: bool) -> Finding:
    """Say which torch the engine's process would have; it is imported in a process of its own."""
    advice = "install torch into the environment of gapless, as https://pytorch.org says"
    try:
        found = json.loads(run((sys.executable, "-c", _TORCH)))
    except (OSError, ValueError) as error:
        return fail("torch", f"cannot be imported: {error}", advice)
    text = f"{found['version']}, {'CUDA ' + found['cuda'] if found['cuda'] else 'a build for the CPU'}"
    if has_gpu and not found["devices"]:
        return fail("torch", f"{text}, which does not see the GPU", f"{advice}, in the build for its CUDA version")
    return ok("torch", f"{text}, GPUs seen: {len(found['devices'])}")


def look_at_inotify(proc: Path) -> Finding:
    """Say whether file-system events can be had; without them new files are found by listing."""
    limits = {}
    for name in ("max_user_instances", "max_user_watches"):
        try:
            limits[name] = int((proc / "sys" / "fs" / "inotify" / name).read_text(encoding="ascii"))
        except (OSError, ValueError):
            return warn("inotify", "not to be had here", "new files are found every daemon.rescan_s all the same")
    text = ", ".join(f"{name} {value:,}" for name, value in limits.items())
    advice = "sysctl fs.inotify.max_user_instances=512; until then new files are found every daemon.rescan_s"
    if limits["max_user_instances"] < _LEAST_INSTANCES:
        return warn("inotify", text, advice)
    descriptor = ctypes.CDLL(None, use_errno=True).inotify_init1(os.O_CLOEXEC)
    if descriptor < 0:
        return warn("inotify", f"{text}; {os.strerror(ctypes.get_errno())}", advice)
    os.close(descriptor)
    return ok("inotify", text)


def look_at_open_files() -> Finding:
    """Say how many files a process may open; each file being run takes two."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < _LEAST_OPEN_FILES:
        return warn("open files", f"at most {soft}", f"ulimit -n {_LEAST_OPEN_FILES}, or LimitNOFILE= of the service")
    return ok("open files", "no limit" if soft == resource.RLIM_INFINITY else f"at most {soft:,}")
