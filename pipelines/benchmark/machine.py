"""On what and with what was measured: no figure means anything without it."""

import os
import platform
import sys
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

_PACKAGES = ("torch", "triton", "transformers")


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine at the start of a measurement."""

    date: str  # UTC, ISO 8601
    device: str  # what the arithmetic runs on
    processor: str
    num_cores: int  # that this process may use
    load: float  # processes that wanted to run in the last minute; what is not ours takes part of every figure
    python: str
    packages: dict[str, str]  # name -> version

    @classmethod
    def read(cls, device: str) -> "Machine":
        """Look around."""
        return cls(
            date=datetime.now(UTC).isoformat(timespec="seconds"),
            device=device,
            processor=_processor(),
            num_cores=len(os.sched_getaffinity(0)),
            load=os.getloadavg()[0],
            python=platform.python_version(),
            packages={name: found for name in _PACKAGES if (found := _version(name))},
        )

    def lines(self) -> list[str]:
        """Return it for people."""
        packages = ", ".join(f"{name} {found}" for name, found in self.packages.items())
        return [
            f"date      {self.date}",
            f"machine   {self.device}; {self.processor}, {self.num_cores} cores, load {self.load:.1f} before the start",
            f"software  Python {self.python}, {packages}",
        ]

    def to_record(self) -> dict[str, Any]:
        """Return it for JSON."""
        return asdict(self)


def device_name(device: Any) -> str:
    """Return what a torch.device is called by its maker."""
    import torch  # noqa: PLC0415  the fake engine does without

    return torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"


def _processor(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    names = [line for line in cpuinfo.read_text(encoding="utf-8").splitlines() if line.startswith("model name")]
    return names[0].partition(":")[2].strip() if names else f"{platform.machine()} ({sys.platform})"


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
