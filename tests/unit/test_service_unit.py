"""The systemd unit: systemd takes it, and what it says fits the daemon."""

import re
import subprocess
import sys
from pathlib import Path

from programs import need_program

from daemon.errors import ExitCode
from daemon.settings_daemon import DaemonSettings

UNIT = Path(__file__).parents[2] / "systemd" / "gapless.service"


def settings() -> dict[str, str]:
    """Return the unit's settings; those that stand several times are not asked for."""
    return dict(re.findall(r"^([A-Za-z]+)=(.*)$", UNIT.read_text(encoding="utf-8"), flags=re.MULTILINE))


def analyze(tmp_path: Path, *arguments: str, change: tuple[str, str] = ("", "")) -> subprocess.CompletedProcess[str]:
    """Have systemd look at the unit, with a program that exists on every machine in the place of ours."""
    program = need_program("systemd-analyze", "systemd")
    unit = tmp_path / UNIT.name
    text = UNIT.read_text(encoding="utf-8").replace("/opt/gapless/.venv/bin/gapless", sys.executable)
    unit.write_text(text.replace(*change))
    return subprocess.run([program, *arguments, str(unit)], capture_output=True, text=True, check=False, timeout=60)


def test_systemd_finds_nothing_wrong(tmp_path: Path) -> None:
    """No unknown setting, no value that it does not understand."""
    found = analyze(tmp_path, "verify")
    assert (found.returncode, found.stdout + found.stderr) == (0, "")


def test_systemd_would_find_what_is_wrong(tmp_path: Path) -> None:
    """The check above can fail."""
    found = analyze(tmp_path, "verify", change=("WatchdogSec=120", "WatchdogSec=soon"))
    assert "gapless.service:" in found.stderr
    assert "soon" in found.stderr


def test_systemd_calls_its_exposure_ok(tmp_path: Path) -> None:
    """At most 4.5 of 10: nothing of the hardening got lost."""
    found = analyze(tmp_path, "security", "--offline=true", "--no-pager", "--threshold=45")
    assert found.returncode == 0, found.stdout[-300:]


def test_what_it_says_fits_the_daemon() -> None:
    """Restarts, exit codes and time limits."""
    unit = settings()
    assert unit["Type"] == "notify"
    assert unit["KillMode"] == "mixed"
    assert unit["OOMPolicy"] == "continue"
    assert unit["Restart"] == "on-failure"
    assert int(unit["RestartPreventExitStatus"]) == ExitCode.FIX_INPUT
    assert int(unit["TimeoutStopSec"]) > DaemonSettings.model_fields["drain_s"].default + 60
    assert int(unit["WatchdogSec"]) >= 60


def test_it_leaves_the_gpu_to_the_service() -> None:
    """Settings that would hide /dev/nvidia*, or forbid that kernels are compiled."""
    for name in ("PrivateDevices", "DevicePolicy", "DeviceAllow", "ProtectClock", "MemoryDenyWriteExecute"):
        assert name not in settings()
