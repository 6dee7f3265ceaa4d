"""Commands of a user who may not look into a pipeline's folders: one line that names the place, no fault of ours."""

import subprocess
import sys
from pathlib import Path

import pytest

ORDINARY_USER = Path(__file__).parents[1] / "support" / "ordinary_user.py"
FOLDERS = ("inbox", "work", "outbox", "done", "failed")


@pytest.fixture
def gapless(tmp_path):
    """Run a command on a spool with one finished file; returns (exit code, what it said)."""
    (tmp_path / "gapless.yaml").write_text(
        "daemon: {http: {port: 0}}\nengines: {e: {model: {path: 'fake:'}}}\npipelines: {p: {engine: e}}\n"
    )
    for name in FOLDERS:
        (tmp_path / "spool" / "p" / name).mkdir(parents=True)
    for path in ("f.jsonl", "spool/p/done/f.jsonl"):
        (tmp_path / path).write_text('{"prompt": "a"}\n')

    def run(*arguments):
        command = [sys.executable, ORDINARY_USER, *arguments]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=100)
        return done.returncode, (done.stdout + done.stderr).strip()

    yield run
    for folder in ("p", "p/outbox", "p/done"):
        (tmp_path / "spool" / folder).chmod(0o755)


@pytest.mark.parametrize("closed", [("p",), ("p/outbox", "p/done")], ids=["all", "results"])
def test_a_folder_that_is_closed_is_named(gapless, tmp_path, closed):
    for folder in closed:
        (tmp_path / "spool" / folder).chmod(0)
    for arguments in (("report", "f"), ("retry", "f")):
        code, said = gapless(*arguments)
        assert code == 4
        assert said.startswith(f"cannot look at {tmp_path}/spool/p/outbox/f.")
        assert said.endswith("permission denied")
    for arguments in (("explain", "f"), ("cancel", "f"), ("doctor", "--no-models")):
        assert "internal error" not in gapless(*arguments)[1]


def test_a_file_is_checked_without_the_speed_of_earlier_ones(gapless, tmp_path):
    (tmp_path / "spool" / "p").chmod(0)
    code, said = gapless("check", "f.jsonl")
    assert code == 0
    assert "internal error" not in said


def test_the_doctor_says_whose_folders_they_are_not(gapless, tmp_path):
    (tmp_path / "spool" / "p").chmod(0)
    code, said = gapless("doctor", "--no-models")
    assert code
    assert f"{tmp_path}/spool/p cannot be looked into" in said
