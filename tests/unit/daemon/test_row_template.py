"""Templates of rows: what they see, what they may do, and what a person is told when they fail."""

import time
from datetime import date
from typing import Any

import pytest

from daemon.request_problem import InvalidRequestError
from daemon.row_template import RowTemplate, TemplateMistakeError

MAX_SECONDS = 20.0  # for what would otherwise take for ever; far more than it takes, for machines under load


def rendered(source: str, **cells: Any) -> str:
    return RowTemplate(source).render(cells, tuple(cells))


def refusal(source: str, **cells: Any) -> str:
    with pytest.raises(InvalidRequestError) as caught:
        rendered(source, **cells)
    assert caught.value.param == "template"
    assert caught.value.text.isprintable()
    return caught.value.text


@pytest.mark.parametrize(
    ("source", "cells", "expected"),
    [
        ("Label {{ text }} <b>\n", {"text": "a & <b>"}, "Label a & <b> <b>"),
        ("{{ row['the text'] }}/{{ row.id }}", {"the text": "x", "id": "7"}, "x/7"),
        ("a{{ none }}b", {"none": None}, "ab"),
        ("{% for key, value in row.items() %}{{ key }}={{ value }};{% endfor %}", {"a": 1, "b": 2}, "a=1;b=2;"),
        (
            "{% for tag in tags %}{{ loop.index }}/{{ loop.length }} {{ tag }}{{ ',' if not loop.last }}{% endfor %}",
            {"tags": ["a", "b"]},
            "1/2 a,2/2 b",
        ),
        ("{{ tags|map('upper')|join(', ') }}", {"tags": ["a", "\u00e4"]}, "A, \u00c4"),
        ("{{ row|tojson }}", {"a": "\u00e4<'", "b": None}, '{"a": "\u00e4<\'", "b": null}'),
        (
            "{{ text[:3] }} {{ text.split(',')[1] }} {{ text|truncate(5, leeway=0) }}",
            {"text": "abc,def,ghi"},
            "abc def ab...",
        ),
        ("{{ text.replace('a', 'b') }} {{ '-'.join(['x', 'y']) }} {{ text ~ 1 }}", {"text": "aa"}, "bb x-y aa1"),
        ("{{ nothing|default('d') }} {{ nothing is defined }}", {"text": ""}, "d False"),
        ("{% if n|int > 3 %}many{% else %}few{% endif %} {{ 2 ** 8 }} {{ 7 % 4 }}", {"n": "4"}, "many 256 3"),
        ("{{ day.year }} {{ day.strftime('%d.%m.') }}", {"day": date(2026, 11, 30)}, "2026 30.11."),
        ("{% set b %}x{{ text }}{% endset %}{{ b }}{% filter upper %}{{ b }}{% endfilter %}", {"text": "y"}, "xyXY"),
        ("{{ place.city }} {{ place['items'] }}", {"place": {"city": "Rome", "items": 2}}, "Rome 2"),
    ],
)
def test_what_a_template_makes_of_a_row(source: str, cells: dict[str, Any], expected: str) -> None:
    """Nothing is escaped, a cell without a value is nothing, and the usual words of Jinja are there."""
    assert rendered(source, **cells) == expected


@pytest.mark.parametrize("source", ["\n{{ txet }}", "\n{{ row.txet }}", "\n{{ row['txet'] }}", "\n{{ txet|upper }}"])
def test_a_missing_column_is_named_with_those_that_are_there(source: str) -> None:
    expected = 'line 2 of the template: found "txet", which is no column, expected one of "id", "text"'
    assert refusal(source, id=1, text="x") == expected


@pytest.mark.parametrize(("header", "name"), [("id;text", "semicolons"), ("id\ttext", "tabs"), ("id,text", "commas")])
def test_a_table_with_another_separator_is_asked_about(header: str, name: str) -> None:
    """As spreadsheets write it in half of Europe: its one column has all the names."""
    with pytest.raises(InvalidRequestError) as caught:
        RowTemplate("{{ text }}").render({header: "1;x"}, (header,))
    assert caught.value.text.endswith(f": is the table separated by {name}? A .csv is by commas, a .tsv by tabs")


def test_a_column_whose_name_stands_twice_is_not_guessed() -> None:
    with pytest.raises(InvalidRequestError, match=r'found "a", which is no column: more than one has this name'):
        RowTemplate("{{ a }}").render({"b": "x"}, ("a", "b", "a"))


def test_only_some_of_many_columns_are_listed() -> None:
    cells = {f"c{n}": n for n in range(500)}
    assert refusal("{{ x }}", **cells).endswith('"c19" and 480 more')


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("{{ text.nope }}", 'found "nope", which is not there'),
        ("{{ text.items }}", 'found "items", which is not there'),
        ("{{ 1 / 0 }}", "division by zero"),
        ("{{ text + 1 }}", "can only concatenate str"),
        ("{{ blob }}", "found a column of bytes, expected text or numbers"),
        ("{{ row.items }}", "found the method items itself, expected a value: call it, or write ['items']"),
        ("{% for x in 5 %}{% endfor %}", "'int' object is not iterable"),
        ("{{ none + 'x' }}", "unsupported operand"),
    ],
)
def test_a_template_that_fails_on_a_row_says_where(source: str, says: str) -> None:
    assert refusal(source, text="x", blob=b"x", none=None).startswith(f"line 1 of the template: {says}")


def test_a_template_that_makes_nothing_of_a_row_is_refused() -> None:
    """Rather than to ask the model nothing."""
    assert refusal(" {{ text }}\n", text=" ") == "found an empty prompt, expected words"


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("Label\n{{ text", "line 2 of the template: unexpected end of template, expected 'end of print statement'."),
        ("{% for %}", "line 1 of the template: "),
        ("{{ text|nope }}", "line 1 of the template: No filter named 'nope'."),
        ("{{ text is nope }}", "line 1 of the template: No test named 'nope'."),
        ("{{ text|center(9) }}", "line 1 of the template: No filter named 'center'."),
        ("\n{% include 'x' %}", "line 2 of the template: found include, which templates of rows may not use"),
        ("{% import 'x' as y %}", "line 1 of the template: found import, "),
        ("{% extends 'x' %}", "line 1 of the template: found extends, "),
        ("{% macro f() %}{% endmacro %}", "line 1 of the template: found a macro, "),
        ("{% for x in y recursive %}{% endfor %}", "line 1 of the template: found a recursive loop, "),
        ("{{ " + "(" * 5000 + ")" * 5000 + " }}", "the template: maximum recursion depth exceeded"),
        ("{{ " + "1" * 5000 + " }}", "the template: Exceeds the limit"),
    ],
)
def test_what_is_no_template_is_found_when_it_is_read(source: str, says: str) -> None:
    with pytest.raises(TemplateMistakeError) as caught:
        RowTemplate(source)
    assert str(caught.value).startswith(says)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ text['__class__'] }}",
        "{{ text|map(attribute='__class__')|first }}",
        "{{ row.update({'a': 1}) }}",
        "{{ tags.append(1) }}",
        "{{ '{0.__class__}'.format(text) }}",
        "{{ text.format_map(row) }}",
        "{{ text.encode() }}",
        "{{ range.__self__ }}",
        "{{ loop }}",
        "{{ cycler }}",
        "{{ lipsum() }}",
    ],
)
def test_nothing_but_the_row_can_be_reached(source: str) -> None:
    """Python's insides, the environment's helpers and whatever would change a row for the rows behind it."""
    refusal(source, text="x", tags=[1])


GROW = "{% set ns = namespace(x=text) %}{% for i in range(500) %}GROWS{% endfor %}{{ ns.x }}"


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(9999) %}{% for j in range(9999) %}{% endfor %}{% endfor %}",
        "{% for a in long %}{% for b in long %}{% endfor %}{% endfor %}",
        "{% for a in long|list %}{{ long|upper }}{% endfor %}",
        "{{ range(10 ** 9)|list }}",
        "{{ text * 10 ** 10 }}",
        "{{ 10 ** 10 * text }}",
        "{{ [text] * 10 ** 10 }}",
        "{{ 7 ** (10 ** 9) }}",
        "{{ '%9999999999d' % 1 }}",
        "{{ '{:>9999999999}'.format(1) }}",
        "{{ text.center(10 ** 10) }}",
        "{{ text.ljust(10 ** 10) }}",
        "{{ text.zfill(10 ** 10) }}",
        "{{ long.replace('y', long) }}",
        "{{ long|replace('y', long) }}",
        "{{ long|replace('', long) }}",
        "{{ long.join(long) }}",
        "{{ long|join(long) }}",
        "{{ row|tojson(indent=10 ** 9) }}",
        GROW.replace("GROWS", "{% set ns.x = ns.x ~ ns.x %}"),
        GROW.replace("GROWS", "{% set ns.x = ns.x + ns.x %}"),
        GROW.replace("GROWS", "{% set ns.x = [ns.x, ns.x] %}"),
        GROW.replace("GROWS", "{% set ns.x = (ns.x, ns.x) %}"),
        GROW.replace("GROWS", "{% set ns.x = {1: ns.x, 2: ns.x} %}"),
        GROW.replace("text", "[1]").replace("GROWS", "{% set ns.x = ns.x * 2 %}"),
        GROW.replace("GROWS", "{% set ns.x = [ns.x] * 2 %}"),
        GROW.replace("GROWS", "{% set b %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x = b %}"),
        GROW.replace("GROWS", "{% set ns.x = ns.x.replace('x', 'xx') %}"),
        GROW.replace("text", "3").replace("GROWS", "{% set ns.x = ns.x * ns.x %}"),
    ],
)
def test_a_template_can_neither_run_nor_grow_without_end(source: str) -> None:
    """Each of these would take hours, or more memory than there is; all end at once, as one row's error."""
    started_s = time.monotonic()
    refusal(source, text="x", long="y" * 100_000)
    assert time.monotonic() - started_s < MAX_SECONDS


def test_the_bounds_are_of_one_row() -> None:
    """What one row has used up the next one has again."""
    template = RowTemplate("{% for i in range(6000) %}.{% endfor %}")
    for _ in range(3):
        assert template.render({}, ()) == "." * 6000


@pytest.mark.parametrize(
    ("source", "columns"),
    [
        ("{{ a }} {{ b.c }}", {"a", "b"}),
        ("{% for x in a %}{{ x }}{% endfor %}{{ range(3) }}", {"a"}),
        ("{{ row.a }} {{ b }}", None),
        ("fixed", set()),
    ],
)
def test_which_columns_a_template_looks_at(source: str, columns: set[str] | None) -> None:
    """So that a reader of columns leaves the others alone."""
    assert RowTemplate(source).columns == (None if columns is None else columns | {"range", "namespace"})
