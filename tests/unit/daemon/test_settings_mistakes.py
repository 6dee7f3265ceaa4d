"""Bad configurations: each mistake is one line that says where, what was found, what was expected and what is near it."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from daemon.errors import Problem, SettingsError
from daemon.settings import load_settings
from daemon.settings_daemon import DaemonSettings
from daemon.settings_engine import EngineSettings
from daemon.settings_fields import Section, iterate_keys
from daemon.settings_pipeline import PipelineSettings
from daemon.settings_report import UNBUILT_KEYS

ENGINES = "engines: {main: {model: {path: gpt2}}}\n"
TABLE = Path(__file__).parents[2] / "data" / "settings_mistakes.txt"
PIPELINES = "pipelines: {chat: {engine: main}}\n"
GOOD = ENGINES + PIPELINES


def mistakes(folder: Path, *texts: str) -> list[str]:
    """Load `texts` as the files 1.yaml, 2.yaml... and return the lines of the error, without the folder."""
    files = [folder / f"{number}.yaml" for number in range(1, len(texts) + 1)]
    for file, text in zip(files, texts, strict=True):
        file.write_text(text)
    with pytest.raises(SettingsError) as caught:
        load_settings(files)
    assert len(caught.value.problems) == len(str(caught.value).splitlines())
    return str(caught.value).replace(f"{folder}/", "").splitlines()


def table() -> list[tuple[str, str]]:
    """Return what each case of the data file says and its line."""
    lines = [line for line in TABLE.read_text().splitlines() if line and not line.startswith("#")]
    return list(zip(lines[::2], (line.strip() for line in lines[1::2]), strict=True))


@pytest.mark.parametrize(("text", "line"), table())
def test_a_mistake_is_one_line(tmp_path: Path, text: str, line: str) -> None:
    """The exact words, at the exact place, with nothing beside them: a mistake causes no second line."""
    column = text.index("^") + 1
    sections = [text.replace("^", "")]
    sections += [default for key, default in (("engines", ENGINES), ("pipelines", PIPELINES)) if f"{key}:" not in text]
    assert mistakes(tmp_path, "\n".join(sections)) == [f"1.yaml:1:{column}: {line}"]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("- engines\n", "1.yaml:1:1: found a list, expected a mapping with the keys engines and pipelines"),
        ("gpt2\n", '1.yaml:1:1: found text "gpt2", expected a mapping with the keys engines and pipelines'),
        ("--- ~\n", "1.yaml:1:5: found null, expected a mapping with the keys engines and pipelines"),
        (ENGINES, "1.yaml: pipelines: found no pipeline, expected at least one"),
        (
            PIPELINES,
            '1.yaml:1:28: pipelines.chat.engine: found text "main", expected an engine, of which there is none',
        ),
        (
            GOOD.replace("main", "Main"),
            (
                '1.yaml:1:11: engines.Main: found the name "Main", expected at most 64 of a-z, 0-9, _ and -,'
                ' the first a letter or a digit; did you mean "main"?'
            ),
        ),
        (
            GOOD + ENGINES,
            "1.yaml:3:1: engines: found the same key a second time, expected it once; the first is at line 1, column 1",
        ),
        (
            GOOD + 'daemon: {"a\\nb": 1}\n',
            (
                r'1.yaml:3:10: daemon."a\nb": found an unknown key, expected one of spool, http, watch, settle_s, rescan_s,'
                " min_free_bytes, drain_s, price_per_gpu_hour, retention, log, tracing"
            ),
        ),
    ],
)
def test_a_mistake_of_the_whole_file_is_one_line(tmp_path: Path, text: str, line: str) -> None:
    """The same for what the table cannot say."""
    assert mistakes(tmp_path, text) == [line]


def test_what_borders_on_a_mistake_is_none(tmp_path: Path) -> None:
    """The other side of each rule between keys."""
    (tmp_path / "c.yaml").write_text(
        """
daemon: {http: {host: 0.0.0.0, token_file: ./token}}
engines:
  a: {model: {path: gpt2}, schedule: sync, buffers: {slots: 1}}
  b: {model: {path: gpt2}, batch: {max_num_seqs: 8, max_num_batched_tokens: 8}}
  c: {model: {path: gpt2}, kv_cache: {max_tokens: 64}, max_context: 64}
pipelines:
  1-a_b: {engine: a, models: [x], strict_model: true, sampling: {temperature: 0, top_p: 1, top_k: 0}}
"""
    )
    settings_ = load_settings([tmp_path / "c.yaml"])
    assert list(settings_.pipelines) == ["1-a_b"]
    for host in ("localhost", "127.8.9.1", "::1", "0.0.0.0, insecure: true"):
        (tmp_path / "c.yaml").write_text(f"{GOOD}daemon: {{http: {{host: {host}}}}}".replace("::1", "'::1'"))
        load_settings([tmp_path / "c.yaml"])


def test_all_mistakes_of_a_file_come_at_once_in_its_order(tmp_path: Path) -> None:
    """Broken YAML parts, unknown keys, wrong values and rules between keys, though one section has several of them."""
    text = """\
pipelines:
  chat: {engine: mian, prioritty: 1}
daemon:
  settle_s: !x 1
  http: {host: 0.0.0.0, port: -1}
engines:
  main:
    buffers: {slots: 1, slots: 2}
    model: {}
    batch: {max_num_seqs: 10000, max: 1}
"""
    places = [line.partition(": found")[0] for line in mistakes(tmp_path, text)]
    assert places == [
        "1.yaml:2:18: pipelines.chat.engine",
        "1.yaml:2:24: pipelines.chat.prioritty",
        "1.yaml:4:13: daemon.settle_s",
        "1.yaml:5:16: daemon.http.host",
        "1.yaml:5:31: daemon.http.port",
        "1.yaml:8:22: engines.main.buffers.slots",
        "1.yaml:8:25: engines.main.buffers.slots",
        "1.yaml:9:5: engines.main.model.path",
        "1.yaml:10:27: engines.main.batch.max_num_seqs",
        "1.yaml:10:34: engines.main.batch.max",
    ]


def test_mistakes_of_several_files_come_in_the_order_of_the_files(tmp_path: Path) -> None:
    """The order of the command line, whatever stands in which file; a value of one file is checked against another's."""
    assert mistakes(tmp_path, "pipelines: {chat: {engine: mian}}", "\n\nx: 1", ENGINES + "daemon: {a: 1}") == [
        "2.yaml:3:1: x: found an unknown key, expected one of daemon, engines, pipelines",
        (
            "3.yaml:2:10: daemon.a: found an unknown key, expected one of spool, http, watch, settle_s, rescan_s, min_free_bytes,"
            " drain_s, price_per_gpu_hour, retention, log, tracing"
        ),
    ]
    assert mistakes(tmp_path, "pipelines: {chat: {engine: mian}}", ENGINES) == [
        '1.yaml:1:28: pipelines.chat.engine: found text "mian", expected one of the engines: main; did you mean "main"?'
    ]


def test_a_section_in_two_files_is_refused_with_both_places(tmp_path: Path) -> None:
    """Neither file silently wins; the second is still checked."""
    other = f"daemon: {{settle_s: -1}}\n{ENGINES}pipelines: {{more: {{engine: main}}, chat: {{engine: main}}}}\n"
    assert mistakes(tmp_path, GOOD + "daemon: {}\n", other) == [
        "2.yaml:1:1: daemon: found the same section a second time, expected it once; the first is at 1.yaml:3:1",
        "2.yaml:1:20: daemon.settle_s: found -1, expected a number from 0 to 86400",
        "2.yaml:2:11: engines.main: found the same section a second time, expected it once; the first is at 1.yaml:1:11",
        "2.yaml:3:35: pipelines.chat: found the same section a second time, expected it once; the first is at 1.yaml:2:13",
    ]


def test_a_file_that_cannot_be_read_draws_no_further_complaints(tmp_path: Path) -> None:
    """What it would have held is not reported as missing."""
    (tmp_path / "ok.yaml").write_text(PIPELINES)
    with pytest.raises(SettingsError) as caught:
        load_settings([tmp_path / "none.yaml", tmp_path / "ok.yaml"])
    assert str(caught.value) == f"{tmp_path}/none.yaml: found no such file, expected a YAML file"


def test_a_value_that_cannot_be_read_draws_no_further_complaints(tmp_path: Path) -> None:
    """The rules between keys leave out what is reported already, though its key has a default."""
    text = GOOD + "daemon: {http: {host: 0.0.0.0, token_file: !x token}}\n"
    assert mistakes(tmp_path, text) == [
        '1.yaml:3:44: daemon.http.token_file: found the tag "!x", expected a value without a tag'
    ]


def test_a_misspelt_section_draws_no_further_complaints(tmp_path: Path) -> None:
    """An engine under `engine:` is not reported as missing a second time by every pipeline."""
    assert len(mistakes(tmp_path, "engine: {main: {model: {path: gpt2}}}\n" + PIPELINES)) == 1


@pytest.mark.parametrize("key", sorted(UNBUILT_KEYS))
@pytest.mark.parametrize("value", ["null", "1", "{a: b}"])
def test_a_key_that_is_not_built_is_refused_by_name(tmp_path: Path, key: str, value: str) -> None:
    """Whatever its value, it is neither ignored nor called unknown."""
    path = key.replace("*", "main").split(".")
    text = GOOD.replace("chat", "main") if path[0] == "daemon" else ""
    given_: dict[str, Any] = yaml.safe_load(text or GOOD.replace("chat", "main"))
    inner = given_
    for step in path[:-1]:
        inner = inner.setdefault(step, {})
    inner[path[-1]] = yaml.safe_load(value)
    (line,) = mistakes(tmp_path, yaml.safe_dump(given_))
    assert line.endswith(
        f" {'.'.join(path)}: found a key that is not built yet in this version, expected it to be left out"
    )


def _all_keys() -> list[tuple[str, ...]]:
    parts: tuple[tuple[tuple[str, ...], type[Section]], ...] = (
        (("daemon",), DaemonSettings),
        (("engines", "main"), EngineSettings),
        (("pipelines", "chat"), PipelineSettings),
    )
    return [(*prefix, *path) for prefix, kind in parts for path, _ in iterate_keys(kind)]


def test_no_key_is_both_built_and_not() -> None:
    """A key leaves the list of unbuilt ones when it is built."""
    known = {".".join(path).replace(".main.", ".*.").replace(".chat.", ".*.") for path in _all_keys()}
    assert known & UNBUILT_KEYS == set()
    assert {key for key in UNBUILT_KEYS if any(name.startswith(f"{key}.") for name in known)} == set()


TAKES_MAPPING = ("pipelines", "chat", "chat_template_kwargs")


@pytest.mark.parametrize("path", [path for path in _all_keys() if path != TAKES_MAPPING], ids=".".join)
def test_no_key_takes_a_mapping_and_the_complaint_points_at_it(tmp_path: Path, path: tuple[str, ...]) -> None:
    """Each key that exists is checked, and a wrong value is found at its own line."""
    lines = [f"{'  ' * depth}{step}:" for depth, step in enumerate(path)]
    lines[-1] += " {a: b}"
    if path[0] == "engines" and path[2] != "model":
        lines.append("    model: {path: gpt2}")
    if path[2:3] == ("model",) and path[3] != "path":
        lines.append("      path: gpt2")
    if path[0] == "pipelines" and path[2] != "engine":
        lines.append("    engine: main")
    rest = {"daemon": GOOD, "engines": PIPELINES, "pipelines": ENGINES}[path[0]]
    (line,) = mistakes(tmp_path, "\n".join(lines) + "\n" + rest)
    place = f"1.yaml:{len(path)}:{2 * len(path) + len(path[-1]) + 1}"
    assert line.startswith(f"{place}: {'.'.join(path)}: found a mapping, expected ")


_MUTATIONS = st.lists(
    st.tuples(
        st.integers(0, 400),
        st.integers(0, 6),
        st.sampled_from(["", ":", " ", "\n", "-", "{", "}", "[", "null", "'", "#", "&a", "*a", "0", "\t"]),
    ),
    min_size=1,
    max_size=4,
)


@given(_MUTATIONS)
@settings(deadline=None)
def test_a_damaged_file_never_ends_in_a_traceback(
    tmp_path_factory: pytest.TempPathFactory, mutations: list[tuple[int, int, str]]
) -> None:
    """Cut, overwritten or pasted into, the demo's configuration is either still valid or refused with problems of one line."""
    text = (Path(__file__).parents[3] / "configs" / "demo.yaml").read_text().replace("#", "")[-400:]
    for start, length, pasted in mutations:
        text = text[:start] + pasted + text[start + length :]
    file = tmp_path_factory.getbasetemp() / "damaged.yaml"
    file.write_text(text)
    for problem in _problems(file):
        assert str(problem).startswith(str(file))
        assert "\n" not in str(problem)


def _problems(file: Path) -> tuple[Problem, ...]:
    try:
        load_settings([file])
    except SettingsError as error:
        return error.problems
    return ()
