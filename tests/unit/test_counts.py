"""Numbers in messages agree with their nouns: "1 request", not "1 requests"."""

import ast
import re
from pathlib import Path

import pytest

from pipelines.counted import counted

ROOT = Path(__file__).resolve().parents[2]
NOUNS = (
    "answers|attempts|blocks|cells|choices|columns|days|devices|engines|errors|files|folders|graphs|keys|layers|lines|"
    "mistakes|models|names|pipelines|problems|processes|prompts|records|requests|restarts|results|rows|samples|sequences|"
    "steps|tensors|threads|times|tokens|turns|warnings"
)
# A number's noun, perhaps with a word between them; a rate is always of many.
NOUN = re.compile(rf" (?:(?!in |with |has )[a-z]+ )?(?:{NOUNS})\b(?!/s| an answer)")
IN_LOG = re.compile(rf"%d{NOUN.pattern}")
FAULTS = {"ChannelClosedError", "CheckError", "InvariantError", "ValueError"}  # ours, for whoever mends them
MANY = {("daemon/request_body.py", "len(prompt)")}  # two or more, by what leads there


def sources():
    """Every module whose messages people read; benchmarks and kernels print figures for whoever makes them."""
    for package in ("daemon", "pipelines"):
        for path in sorted((ROOT / package).rglob("*.py")):
            if not {"benchmark", "kernels"} & set(path.parts):
                yield path


def wrong_counts(path, text):
    """Yield a line for each number in an f-string that a plural follows whatever the number is."""
    tree = ast.parse(text)
    faults = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and ast.unparse(node.exc.func) in FAULTS
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and IN_LOG.search(node.value):
            yield f"{path}:{node.lineno}: {node.value}"
        if not isinstance(node, ast.JoinedStr) or id(node) in faults:
            continue
        for value, rest in zip(node.values, node.values[1:], strict=False):
            if isinstance(value, ast.FormattedValue) and isinstance(rest, ast.Constant) and NOUN.match(rest.value):
                number = ast.unparse(value.value)
                if not number.isupper() and (path, number) not in MANY:
                    yield f"{path}:{rest.lineno}: {{{number}}}{rest.value}"


def test_every_message_has_its_counts_from_the_one_helper():
    """A plural behind a number that may be 1 is refused; `counted` has both."""
    found = [
        line for path in sources() for line in wrong_counts(path.relative_to(ROOT).as_posix(), path.read_text("utf-8"))
    ]
    assert not found, "write counted(number, 'request'):\n" + "\n".join(found)


@pytest.mark.parametrize(
    "source",
    [
        'log.info("%d torn blocks {n}")',
        'f"{n} requests"',
        'f"{done} of {n:,} requests"',
        'f"{n} more errors are not listed"',
    ],
)
def test_the_search_finds_what_it_is_for(source):
    """Else it would hold nothing."""
    assert list(wrong_counts("m.py", source))
    assert not list(wrong_counts("m.py", source.replace("{n", "{_MAX").replace("%d", "%s")))


def test_a_count_agrees_with_its_noun():
    """One is one alone; many have their separators."""
    found = [counted(number, "blank line") for number in (0, 1, 2, 12345)]
    assert found == ["0 blank lines", "1 blank line", "2 blank lines", "12,345 blank lines"]
    assert counted(12345, "token", "") == "12345 tokens"
