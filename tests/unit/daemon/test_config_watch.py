"""New content is told once, when it has settled, however it came there."""

import pytest
from live_config import mount_as_configmap, save_by_link, save_by_rename, save_in_place

from daemon.config_watch import ConfigWatch


@pytest.fixture
def paths(tmp_path):
    made = [tmp_path / "a.yaml", tmp_path / "b.yaml"]
    for path in made:
        path.write_text("1")
    return made


def news(watch):
    """What a look tells, taken as dealt with."""
    content = watch.look()
    if content is not None:
        watch.known = content
    return content is not None


def test_nothing_new_is_nothing(paths):
    watch = ConfigWatch(paths)
    assert [news(watch) for _ in range(3)] == [False] * 3


@pytest.mark.parametrize("save", [save_in_place, save_by_rename, save_by_link, mount_as_configmap])
def test_each_way_of_saving_is_told_once_at_the_second_look(paths, save):
    """Also if it is the second of two files."""
    watch = ConfigWatch(paths)
    for text in ("2", "3"):
        save(paths[1], text)
        assert [news(watch) for _ in range(4)] == [False, True, False, False]


def test_what_still_changes_is_not_told(paths):
    """Edits that follow each other are one."""
    watch = ConfigWatch(paths)
    for number in range(5):
        paths[0].write_text(f"edit {number}")
        assert not news(watch)
    assert news(watch)


def test_a_save_without_a_change_and_a_change_taken_back_are_nothing(paths):
    watch = ConfigWatch(paths)
    paths[0].touch()
    assert not news(watch)
    paths[0].write_text("2")
    assert not news(watch)
    paths[0].write_text("1")
    assert [news(watch) for _ in range(3)] == [False] * 3


def test_a_file_that_is_gone_is_news_and_so_is_its_return(paths):
    watch = ConfigWatch(paths)
    paths[0].unlink()
    assert [news(watch), news(watch), news(watch)] == [False, True, False]
    paths[0].write_text("1")
    assert [news(watch), news(watch)] == [False, True]
