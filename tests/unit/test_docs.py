"""The documents: what they point at exists, and what they show can be run."""

import json
import re
import shlex
from pathlib import Path

import pytest
import yaml
from doc_blocks import PAGES, ROOT, Block, blocks_of

from daemon.cli_parser import make_parser
from daemon.file_options import FileOptions, read_options
from daemon.request_keys import BODY_RULES
from daemon.request_schema import ChatBody, CompletionBody, ResponseBody
from daemon.settings import load_settings
from daemon.survey import survey

FILL_UPS = {  # for a block that shows a part of a configuration
    "engines": "engines: {main: {model: {path: gpt2}}}\n",
    "pipelines": "pipelines: {chat: {engine: main}}\n",
}


@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_links_to_exists(page: str) -> None:
    """No link into this project is dead, nor its place within a page."""
    for target in re.findall(r"\]\(([^):]+)\)", (ROOT / page).read_text(encoding="utf-8")):
        name, _, place = target.partition("#")
        path = (ROOT / page).parent / name if name else ROOT / page
        assert path.exists(), target
        if place:
            headings = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
            assert place in {re.sub(r"[^a-z0-9 _-]", "", text.lower()).replace(" ", "-") for text in headings}, target


def test_every_page_is_in_the_index() -> None:
    """What nobody finds need not have been written."""
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    pages = [page.removeprefix("docs/") for page in PAGES if page.startswith("docs/") and page != "docs/README.md"]
    assert [page for page in pages if f"]({page})" not in index] == []


@pytest.mark.parametrize("page", PAGES)
def test_the_files_that_a_page_names_exist(page: str) -> None:
    """A module that was renamed is renamed in the documents too."""
    text = (ROOT / page).read_text(encoding="utf-8")
    names = re.findall(r"`((?:daemon|pipelines|configs|requirements|docs|systemd|tests)/[\w./-]+)`", text)
    assert [name for name in names if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("block", blocks_of("yaml"), ids=str)
def test_yaml_in_a_page_is_what_the_daemon_takes(block: Block, tmp_path: Path) -> None:
    """A configuration, a part of one, or the options of a file."""
    plain = yaml.safe_load(block.text)
    file = tmp_path / "x.yaml"
    if plain.keys() <= FileOptions.model_fields.keys():
        file.write_text(block.text, encoding="utf-8")
        settings = tmp_path / "gapless.yaml"
        settings.write_text("".join(FILL_UPS.values()), encoding="utf-8")
        read_options(file, load_settings([settings]).pipelines["chat"])
    else:
        missing = [text for key, text in FILL_UPS.items() if key not in plain]
        file.write_text("".join([block.text, *missing]), encoding="utf-8")
        assert load_settings([file]).pipelines


@pytest.mark.parametrize("block", blocks_of("json"), ids=str)
def test_json_in_a_page_is_json(block: Block) -> None:
    """One value."""
    json.loads(block.text)


@pytest.mark.parametrize("block", blocks_of("jsonl"), ids=str)
def test_request_lines_in_a_page_are_good_requests(block: Block, tmp_path: Path) -> None:
    """Each line of them would be run."""
    file = tmp_path / "x.jsonl"
    file.write_text(block.text, encoding="utf-8")
    found = survey(file)
    assert found.num_requests == block.text.count("\n")
    assert [bad.message for bad in found.bad_lines] == []


@pytest.mark.parametrize("block", blocks_of("sh", ""), ids=str)
def test_commands_in_a_page_are_commands(block: Block, capsys: pytest.CaptureFixture[str]) -> None:
    """Each has its command, its arguments and its options."""
    for line in re.findall(r"^(?:\S*/)?gapless ([a-z].*)$", block.text, flags=re.MULTILINE):
        for words in commands_in(line):
            try:
                make_parser().parse_args(words)
            except SystemExit:
                pytest.fail(f"{block}: gapless {line}: {capsys.readouterr().err}")


def commands_in(line: str) -> list[list[str]]:
    """Return the words of one line, or of each of `gapless pause, gapless resume`; what explains it stands two blanks away."""
    command = re.split(r"  +|[|>]|&&| 2>", line)[0]
    return [shlex.split(part) for part in re.split(r", gapless ", command)]


def test_commands_that_do_not_exist_would_be_found(capsys: pytest.CaptureFixture[str]) -> None:
    """The check above can fail."""
    block = Block("page", 1, "sh", "gapless submit --wait x.jsonl    # fine\ngapless submit --now x.jsonl\n")
    with pytest.raises(pytest.fail.Exception, match="--now"):
        test_commands_in_a_page_are_commands(block, capsys)


@pytest.mark.parametrize("page", [page for page in PAGES if page != "docs/decisions.md"])  # which tells of others, too
def test_the_metrics_that_a_page_names_exist(page: str) -> None:
    """Those of the reference, which a test of its own holds to the code."""
    reference = (ROOT / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8")
    known = set(re.findall(r"^\| `(gapless_\w+)`", reference, flags=re.MULTILINE))
    named = set(re.findall(r"`(gapless_\w+)", (ROOT / page).read_text(encoding="utf-8")))
    assert named - known <= {"gapless_output", "gapless_nvml_"}  # a column's name; a family of metrics


def test_the_fields_on_the_page_of_requests_are_those_that_are_read() -> None:
    """What is honoured is named in its first part, what is not in its second; nothing else is named there."""
    text = (ROOT / "docs" / "reference" / "requests.md").read_text(encoding="utf-8")
    first, _, second = text.partition("## Taken, without effect here")
    honoured: set[str] = set()
    for body in (ChatBody, CompletionBody, ResponseBody):
        honoured |= body.model_fields.keys()
    named = set(re.findall(r"`(\w+)", first))
    assert honoured <= named | {"guided_json"}
    assert named >= {"response_format", "structured_outputs"}
    dropped = BODY_RULES.keys() - honoured
    assert dropped <= set(re.findall(r"`(\w+)", second))


def test_the_fields_on_the_page_about_openai_are_sorted_as_they_are_read() -> None:
    text = (ROOT / "docs" / "how-to" / "from-openai-batch.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| ([A-Z][\w ,]+) \| (`.*) \|$", text, flags=re.MULTILINE))
    named = {label: set(re.findall(r"`(\w+)`", row)) for label, row in rows.items()}
    honoured = ChatBody.model_fields.keys() | CompletionBody.model_fields.keys() | ResponseBody.model_fields.keys()
    assert named["The same"] - {"system", "developer", "user", "assistant", "tool"} <= honoured
    assert not (named["Taken, no bearing here"] | named["Refused by name, unless they ask for nothing"]) & honoured
    assert named["Taken, no bearing here"] | named["Refused by name, unless they ask for nothing"] <= BODY_RULES.keys()


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
