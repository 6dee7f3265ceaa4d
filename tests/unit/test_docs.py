"""The documents: what they point at exists, and what they show can be run."""

import re
from pathlib import Path

import pytest

from daemon.settings import load_settings

ROOT = Path(__file__).parents[2]
PAGES = (
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    *(str(page.relative_to(ROOT)) for page in ROOT.glob("docs/**/*.md")),
)


@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_links_to_exists(page: str) -> None:
    """No link into this project is dead."""
    targets = re.findall(r"\]\(([^)#:]+)\)", (ROOT / page).read_text(encoding="utf-8"))
    assert [target for target in targets if not (ROOT / page).parent.joinpath(target).exists()] == []


@pytest.mark.parametrize("page", PAGES)
def test_the_files_that_a_page_names_exist(page: str) -> None:
    """A module that was renamed is renamed in the documents too."""
    text = (ROOT / page).read_text(encoding="utf-8")
    names = re.findall(r"`((?:daemon|pipelines|configs|requirements|docs)/[\w./-]+)`", text)
    assert [name for name in names if not (ROOT / name).exists()] == []


def test_the_configuration_in_the_readme_is_valid(tmp_path: Path) -> None:
    """What a newcomer copies runs."""
    blocks = re.findall(r"```yaml\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), flags=re.DOTALL)
    assert blocks
    for block in blocks:
        file = tmp_path / "gapless.yaml"
        file.write_text(block, encoding="utf-8")
        assert list(load_settings([file]).pipelines) == ["chat"]


def test_the_architecture_stays_at_two_pages() -> None:
    """It is read only while it is short: 110 lines of at most 130 characters."""
    lines = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 110
    assert max(map(len, lines)) <= 130


def test_the_make_targets_that_the_documents_name_exist() -> None:
    """A command in a document is one that make knows."""
    known = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE))
    named = {
        target
        for page in PAGES
        for target in re.findall(
            r"(?:^|`)make ([a-z-]+)", (ROOT / page).read_text(encoding="utf-8"), flags=re.MULTILINE
        )
    }
    assert {"demo", "test"} <= named
    assert named <= known
