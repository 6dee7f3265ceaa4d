"""The note of which spool a configuration's daemon runs on is found while that daemon runs, and believed from nobody else."""

from pathlib import Path

import pytest

from daemon.running import noted, spool_of_running
from daemon.spool_lock import lock_of_spool


@pytest.fixture
def environment(tmp_path):
    return {"XDG_RUNTIME_DIR": str(tmp_path)}


def note_folder(environment):
    return Path(environment["XDG_RUNTIME_DIR"], "gapless")


def test_the_spool_is_found_while_its_daemon_runs(tmp_path, environment):
    """Not once it has ended, though its note should have stayed as after a kill."""
    configs, spool = [tmp_path / "a.yaml", tmp_path / "b.yaml"], tmp_path / "spool"
    with noted(configs, spool, environment):
        assert spool_of_running(configs, environment) is None, "nobody holds the lock"
        with lock_of_spool(spool):
            assert spool_of_running(configs, environment) == spool
            assert spool_of_running(configs[:1], environment) is None
        assert spool_of_running(configs, environment) is None
    assert not list(note_folder(environment).iterdir())


def test_a_configuration_is_known_by_its_name_however_that_is_given(tmp_path, environment, monkeypatch):
    """Also where a link on the way leads elsewhere by now."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    (tmp_path / "link").symlink_to("one")
    with noted([tmp_path / "link" / "g.yaml"], tmp_path / "spool", environment), lock_of_spool(tmp_path / "spool"):
        (tmp_path / "link").unlink()
        (tmp_path / "link").symlink_to("two")
        monkeypatch.chdir(tmp_path)
        assert spool_of_running([Path("link/../link/g.yaml")], environment) == tmp_path / "spool"


def test_a_service_leaves_it_where_its_manager_says(tmp_path):
    environment = {"RUNTIME_DIRECTORY": f"{tmp_path / 'run'}:{tmp_path / 'other'}"}
    with noted([Path("g.yaml")], tmp_path / "spool", environment), lock_of_spool(tmp_path / "spool"):
        assert len(list((tmp_path / "run").iterdir())) == 1
        assert spool_of_running([Path("g.yaml")], environment) == tmp_path / "spool"


def test_a_folder_that_others_can_write_to_is_not_believed(tmp_path, environment):
    note_folder(environment).mkdir()
    with noted([Path("g.yaml")], tmp_path / "spool", environment), lock_of_spool(tmp_path / "spool"):
        note_folder(environment).chmod(0o777)
        assert spool_of_running([Path("g.yaml")], environment) is None
    with noted([Path("g.yaml")], tmp_path / "spool", environment):
        assert not list(note_folder(environment).iterdir()), "nor is anything written there"


def test_a_daemon_runs_on_where_no_note_can_be_left(tmp_path):
    environment = {"XDG_RUNTIME_DIR": str(tmp_path / "missing")}
    with noted([Path("g.yaml")], tmp_path / "spool", environment), lock_of_spool(tmp_path / "spool"):
        assert spool_of_running([Path("g.yaml")], environment) is None


def test_notes_of_daemons_that_were_killed_go_with_the_next_start(tmp_path, environment):
    """Those of others that run stay."""
    others = [tmp_path / "x.yaml"]
    with lock_of_spool(tmp_path / "x"), noted(others, tmp_path / "x", environment):
        (note_folder(environment) / "left").write_text(str(tmp_path / "gone"))
        with lock_of_spool(tmp_path / "y"), noted([tmp_path / "y.yaml"], tmp_path / "y", environment):
            assert len(list(note_folder(environment).iterdir())) == 2
            assert spool_of_running(others, environment) == tmp_path / "x"
