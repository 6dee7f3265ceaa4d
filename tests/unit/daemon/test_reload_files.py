"""Orders and answers left in the spool."""

import stat

from daemon.reload_files import ReloadAnswer, ReloadFiles, ReloadOrder, ReloadOutcome
from daemon.settings import load_settings


def test_an_order_is_taken_once_and_answered_by_its_name(tmp_path):
    files = ReloadFiles(tmp_path)
    assert files.take_order() is None
    for cuts_over in (False, True):
        order = ReloadOrder("a", cuts_over)
        files.give_order(order)
        assert (files.take_order(), files.take_order()) == (order, None)
    assert files.read_answer("a") is None
    answer = ReloadAnswer("a", ReloadOutcome.REFUSED, ("because",))
    files.give_answer(answer)
    assert files.read_answer("a") == answer
    assert files.read_answer("b") is None


def test_the_settings_that_run_are_for_their_user_alone_and_read_back_equal(tmp_path):
    path = tmp_path / "gapless.yaml"
    path.write_text(
        "engines: {e: {model: {path: 'fake:'}}}\npipelines: {p: {engine: e, on_done: 'https://x/secret'}}\n"
    )
    settings, files = load_settings([path]), ReloadFiles(tmp_path)
    files.note_running(settings)
    assert load_settings([files.running]) == settings
    assert stat.S_IMODE(files.running.stat().st_mode) == 0o600
