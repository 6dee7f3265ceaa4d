"""Each thing the doctor looks at: well, not so well, and broken, with advice wherever something is to be done."""

import json
import os
import socket
import sys
import threading
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest

from daemon import doctor_spool
from daemon.doctor import Level
from daemon.doctor_machine import (
    gpu_names,
    look_at_gpu,
    look_at_inotify,
    look_at_machine,
    look_at_memory,
    look_at_torch,
    run_program,
)
from daemon.doctor_model import look_at_models
from daemon.doctor_spool import look_at_file_system, look_at_space, look_at_spool
from daemon.errors import ExitCode
from daemon.pause_file import PauseFile
from daemon.settings import load_settings
from daemon.spool_lock import lock_of_spool

SMI = "NVIDIA H200, 570.1, 143771 MiB, 12 MiB\n"


@contextmanager
def health_server(status):
    """Answer /healthz as a daemon would, and yield the port."""

    class Health(BaseHTTPRequestHandler):
        def do_GET(self):
            assert self.path == "/healthz"
            self.send_response(status)
            self.end_headers()
            self.wfile.write(b"ok" if status == HTTPStatus.OK else b"the loop hangs")

        def log_message(self, *_):
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Health) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


def settings_for(tmp_path, device="auto", port=0, model="fake:"):
    (tmp_path / "c.yaml").write_text(
        f"daemon: {{http: {{port: {port}}}, min_free_bytes: 1MiB}}\n"
        f"engines: {{e: {{model: {{path: '{model}', device: '{device}'}}}}}}\npipelines: {{p: {{engine: e}}}}\n"
    )
    return load_settings([tmp_path / "c.yaml"])


def proc(tmp_path, files):
    for name, text in files.items():
        path = tmp_path / "proc" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "proc"


def failing(_):
    raise OSError(5, "it is broken")


def answering(text):
    return lambda _: text


def levels(findings):
    return {finding.subject: finding.level for finding in findings}


def check_advice(findings):
    for finding in findings:
        assert bool(finding.advice) == (finding.level is not Level.OK)
        assert "\n" not in finding.text + finding.advice


def test_this_machine_is_looked_at_whatever_it_is(tmp_path):
    """The real one: five findings, each with its advice where it is not well."""
    findings = list(
        look_at_machine(settings_for(tmp_path), answering(json.dumps({"version": "2", "cuda": None, "devices": []})))
    )
    assert list(levels(findings)) == ["memory", "gpu", "torch", "inotify", "open files"]
    check_advice(findings)


@pytest.mark.parametrize(
    ("text", "level"),
    [
        ("MemTotal: 100 kB\nMemAvailable: 90 kB\n", Level.WARN),
        ("MemTotal: 99999999 kB\nMemAvailable: 90000000 kB\n", Level.OK),
        ("nonsense\n", Level.WARN),
    ],
)
def test_memory(tmp_path, text, level):
    """Little, enough, unknown."""
    finding = look_at_memory(proc(tmp_path, {"meminfo": text}))
    assert finding.level is level
    check_advice([finding])


def test_the_gpu_that_an_engine_wants_has_to_be_there(tmp_path):
    """Named with its driver if it is; failing only where the configuration insists."""
    there = gpu_names(answering(SMI))
    assert there == ["NVIDIA H200, driver 570.1, 12 MiB of 143771 MiB taken"]
    assert gpu_names(failing) == []
    empty = proc(tmp_path, {"x": ""})
    assert look_at_gpu(settings_for(tmp_path, "cuda:0"), there, empty).level is Level.OK
    assert look_at_gpu(settings_for(tmp_path), [], empty).level is Level.WARN
    wanting = look_at_gpu(settings_for(tmp_path, "cuda"), [], empty)
    assert (wanting.level, "no NVIDIA driver" in wanting.text) == (Level.FAIL, True)
    assert "engines.e.model.device" in wanting.advice
    loaded = proc(tmp_path, {"driver/nvidia/version": "1"})
    assert "nvidia-smi shows no GPU" in look_at_gpu(None, [], loaded).text


def test_torch_has_to_be_there_and_to_see_the_gpu():
    """A CPU build beside a GPU is the commonest mistake."""
    cpu = answering(json.dumps({"version": "2.13", "cuda": None, "devices": []}))
    assert look_at_torch(cpu, has_gpu=False).level is Level.OK
    assert "does not see the GPU" in look_at_torch(cpu, has_gpu=True).text
    cuda = answering(json.dumps({"version": "2.13", "cuda": "12.8", "devices": ["H200"]}))
    assert look_at_torch(cuda, has_gpu=True).text == "2.13, CUDA 12.8, GPUs seen: 1"
    broken = look_at_torch(failing, has_gpu=False)
    assert (broken.level, "it is broken" in broken.text) == (Level.FAIL, True)


def test_inotify(tmp_path):
    """Too few, enough, none at all."""
    limits = "sys/fs/inotify/max_user_"
    assert look_at_inotify(proc(tmp_path, {f"{limits}instances": "128", f"{limits}watches": "9"})).level is Level.OK
    few = look_at_inotify(proc(tmp_path, {f"{limits}instances": "2"}))
    assert (few.level, "sysctl" in few.advice) == (Level.WARN, True)
    assert look_at_inotify(tmp_path / "nowhere").level is Level.WARN


def test_a_program_that_fails_gives_its_last_word():
    """The line that says why, not the whole of it."""
    assert run_program((sys.executable, "-c", "print(1)")) == "1\n"
    with pytest.raises(OSError, match="second"):
        run_program((sys.executable, "-c", "import sys; sys.exit('first\\nsecond')"))


def test_a_spool_that_is_not_there_yet_can_be_made(tmp_path):
    """Nothing is made by looking."""
    findings = list(look_at_spool(settings_for(tmp_path)))
    assert set(levels(findings).values()) <= {Level.OK, Level.WARN}
    assert not (tmp_path / "spool").exists()
    check_advice(findings)


def test_what_is_wrong_with_a_spool_is_named(tmp_path, monkeypatch):
    """A file in its place, a folder that may not be written, a pause that somebody forgot."""
    settings = settings_for(tmp_path)
    root = tmp_path / "spool" / "p"
    (root / "inbox").mkdir(parents=True)
    PauseFile(root).pause("since March")
    findings = list(look_at_spool(settings))
    (paused,) = [finding for finding in findings if finding.subject == "pipeline p"]
    assert (paused.level, "since March" in paused.text, paused.advice) == (Level.WARN, True, "gapless resume p")
    monkeypatch.setattr(doctor_spool.os, "access", lambda *_: False)
    assert levels(look_at_spool(settings))["pipeline p"] is Level.FAIL
    assert levels(look_at_spool(settings))["spool"] is Level.FAIL
    monkeypatch.undo()
    (root / "outbox").write_text("a file")
    assert levels(look_at_spool(settings))["pipeline p"] is Level.FAIL


def test_the_port_matters_as_long_as_no_daemon_runs(tmp_path):
    """In use by a stranger it fails; by our own daemon it is well."""
    with health_server(HTTPStatus.OK) as port:
        settings = settings_for(tmp_path, port=port)
        assert levels(look_at_spool(settings))["daemon"] is Level.FAIL
        with lock_of_spool(settings.daemon.spool):
            running = next(finding for finding in look_at_spool(settings) if finding.subject == "daemon")
    assert (running.level, "one runs" in running.text) == (Level.OK, True)


def test_a_daemon_that_runs_and_does_not_get_on_is_a_fault(tmp_path, monkeypatch):
    """One that says so, and one that was stopped: its port takes connections and nobody answers."""
    with health_server(HTTPStatus.SERVICE_UNAVAILABLE) as port:
        settings = settings_for(tmp_path, port=port)
        with lock_of_spool(settings.daemon.spool):
            hanging = next(finding for finding in look_at_spool(settings) if finding.subject == "daemon")
    assert (hanging.level, "/healthz: the loop hangs" in hanging.text) == (Level.FAIL, True)
    monkeypatch.setattr("daemon.ask._TIMEOUT_S", 0.1)
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        settings = settings_for(tmp_path, port=other.getsockname()[1])
        with lock_of_spool(settings.daemon.spool):
            silent = next(finding for finding in look_at_spool(settings) if finding.subject == "daemon")
    assert (silent.level, "timed out" in silent.text, "start it again" in silent.advice) == (Level.FAIL, True, True)


def test_an_address_that_cannot_be_had_is_told_from_a_port_in_use(tmp_path):
    """A name that nobody knows is not mended by another port; a free port of one's choice has no number yet."""
    (tmp_path / "d.yaml").write_text(
        "daemon: {http: {host: no.such.host.invalid, insecure: true}}\n"
        "engines: {e: {model: {path: 'fake:'}}}\npipelines: {p: {engine: e}}\n"
    )
    found = next(
        finding for finding in look_at_spool(load_settings([tmp_path / "d.yaml"])) if finding.subject == "daemon"
    )
    assert found.level is Level.FAIL
    assert "no.such.host.invalid port 9400 cannot be had: host name not known" in found.text
    assert "daemon.http.host" in found.advice
    free = next(finding for finding in look_at_spool(settings_for(tmp_path, port=0)) if finding.subject == "daemon")
    assert free.text == "none runs; a port of 127.0.0.1 is free"


def test_what_http_and_traces_need_is_looked_at_where_they_are_asked_for(tmp_path, monkeypatch):
    """A token's file that is not there, and packages that are not installed, end a start; the codes are those of a start."""
    (tmp_path / "d.yaml").write_text(
        "daemon: {http: {port: 0, token_file: ./token}, tracing: {endpoint: 'http://127.0.0.1:1'}}\n"
        "engines: {e: {model: {path: 'fake:'}}}\npipelines: {p: {engine: e}}\n"
    )
    settings = load_settings([tmp_path / "d.yaml"])
    monkeypatch.setitem(sys.modules, "daemon.otel", None)
    found = {finding.subject: finding for finding in look_at_spool(settings)}
    assert (found["token"].level, found["token"].exit_code) == (Level.FAIL, ExitCode.FIX_INPUT)
    assert f"cannot read {tmp_path / 'token'}: No such file" in found["token"].text
    assert (found["tracing"].level, found["tracing"].exit_code) == (Level.FAIL, ExitCode.FIX_INPUT)
    check_advice(found.values())
    monkeypatch.undo()
    (tmp_path / "token").write_text("secret")
    found = levels(look_at_spool(settings))
    assert (found["token"], found["tracing"]) == (Level.OK, Level.OK)
    assert not {"token", "tracing"} & set(levels(look_at_spool(settings_for(tmp_path))))


@pytest.mark.parametrize(
    ("on_done", "is_there"),
    [
        ("'./none.sh'", False),
        ("no-such-program --fast", False),
        ("[sh, -c, 'true']", True),
        ("http://127.0.0.1:1/x", True),
    ],
)
def test_a_program_that_is_to_be_told_has_to_be_there(tmp_path, on_done, is_there):
    """Else one learns of it in the log, when the first file has ended."""
    (tmp_path / "d.yaml").write_text(
        "daemon: {http: {port: 0}}\nengines: {e: {model: {path: 'fake:'}}}\n"
        f"pipelines: {{p: {{engine: e, on_done: {on_done}}}}}\n"
    )
    found = [finding for finding in look_at_spool(load_settings([tmp_path / "d.yaml"])) if "on_done" in finding.text]
    assert [(finding.subject, finding.level) for finding in found] == ([] if is_there else [("pipeline p", Level.WARN)])
    check_advice(found)


def test_too_little_room_stops_intake(tmp_path):
    """As the daemon would find it."""
    free = os.statvfs(tmp_path).f_bavail * os.statvfs(tmp_path).f_frsize
    assert look_at_space(tmp_path, 2 * free).level is Level.FAIL
    assert look_at_space(tmp_path, int(0.7 * free)).level is Level.WARN
    assert look_at_space(tmp_path, 0).level is Level.OK


@pytest.mark.parametrize(
    ("used_up", "level", "words"),
    [
        ({"f_bavail": 0}, Level.FAIL, "it is full"),
        ({"f_favail": 0}, Level.FAIL, "its inodes are used up"),
        ({"f_favail": 0, "f_files": 0}, Level.OK, "are free"),
    ],
)
def test_a_full_disk_is_a_fault_whatever_is_kept_free(tmp_path, monkeypatch, used_up, level, words):
    """Of bytes or of files. A file system that does not count files has none left and takes them all the same."""
    counts = {"f_bavail": 1 << 20, "f_frsize": 4096, "f_files": 100, "f_favail": 50}
    monkeypatch.setattr("daemon.doctor_spool.os.statvfs", lambda _: SimpleNamespace(**counts | used_up))
    found = look_at_space(tmp_path, 0)
    assert found.level is level
    assert words in found.text


@pytest.mark.parametrize(
    ("place", "kind", "level"),
    [
        ("/", "ext4", Level.OK),
        ("/data/spool", "nfs4", Level.WARN),
        ("/data/a b/c", "fuse.sshfs", Level.WARN),
        ("/database", "ext4", Level.OK),
        ("/memory/x", "tmpfs", Level.WARN),
        ("/shared/x", "vboxsf", Level.WARN),
        ("/windows/x", "fuseblk", Level.OK),
        ("/\u65e5 \u672c/x", "ext4", Level.OK),
    ],
)
def test_the_file_system_is_told_as_the_daemon_sees_it(tmp_path, place, kind, level):
    """What it polls is what the doctor warns of; the same table, read in the same way."""
    info = tmp_path / "mountinfo"
    info.write_text(
        "1 0 8:1 / / rw - overlay x rw\n2 1 8:1 / / rw,relatime shared:1 - ext4 /dev/x rw\n"
        "3 1 0:5 / /data rw - nfs4 host:/x rw\n4 1 0:6 / /data/a\\040b rw - fuse.sshfs x rw\n5 1 0:7 / /memory rw - tmpfs x rw\n"
        "6 1 0:8 / /shared rw - vboxsf x rw\n7 1 0:9 / /windows rw - fuseblk x rw\n"
        "8 1 0:10 / /\u65e5\\040\u672c rw - ext4 x rw\n"
    )
    found = look_at_file_system(Path(place), info)
    assert found.level is level
    assert found.text.startswith(kind)
    assert look_at_file_system(Path(place), tmp_path / "none").level is Level.WARN


def test_a_model_that_works_and_one_that_is_not_there(tmp_path):
    """By a text process, as a run would have it."""
    (finding,) = look_at_models(settings_for(tmp_path), lambda _: None)
    assert (finding.level, "chat template work" in finding.text) == (Level.OK, True)
    (finding,) = look_at_models(settings_for(tmp_path, model="./no/such/model"), lambda _: None)
    assert (finding.level, "no/such/model" in finding.text) == (Level.FAIL, True)
    assert finding.exit_code is ExitCode.FIX_INPUT
    check_advice([finding])
