"""Whatever the configuration says, its effective form and a journal's record say the same."""

import json
import tempfile
from pathlib import Path
from typing import Any

import hypothesis
from hypothesis import given
from hypothesis import strategies as st

from daemon.settings import PipelineSettings, Settings, load_settings, render_effective
from pipelines.config import Dtype


def load(folder: Path, text: str) -> Settings:
    file = folder / "c.yaml"
    file.write_text(text)
    return load_settings([file])


_NAMES = st.from_regex(r"[a-z0-9][a-z0-9_-]{0,63}", fullmatch=True)
_TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
_LOOKALIKES = st.sampled_from(
    ["yes", "1e3", "0o7", "~", "null", "12", "true", "1:30", "a\nb", " a", "a: b", "- a", "# a"]
)
_PATHS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0/~"), min_size=1, max_size=8)
_SECONDS = st.floats(1e-9, 86400)


def _some(**keys: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=keys)


_DAEMONS = _some(
    spool=_PATHS,
    http=_some(
        host=st.sampled_from(["127.0.0.1", "::1", "localhost"]),
        port=st.integers(0, 65535),
        token_file=_PATHS,
        insecure=st.booleans(),
    ),
    watch=st.sampled_from(["auto", "events", "poll"]),
    settle_s=_SECONDS,
    rescan_s=_SECONDS,
    min_free_bytes=st.integers(0, 2**63 - 1) | st.sampled_from(["1GiB", "3 kB", "1.5MiB"]),
    drain_s=st.integers(0, 86400),
    log=_some(level=st.sampled_from(["debug", "error"]), format=st.sampled_from(["text", "json"])),
)
_ENGINES = st.fixed_dictionaries(
    {
        "model": st.fixed_dictionaries(
            {"path": _PATHS.map("./".__add__) | _NAMES},
            optional={"revision": _LOOKALIKES, "dtype": st.sampled_from(list(Dtype)).map(str)},
        )
    },
    optional={
        "schedule": st.sampled_from(["async", "sync"]),
        "batch": _some(max_num_seqs=st.integers(1, 8192)),
        "kv_cache": _some(
            block_size=st.sampled_from([8, 256]),
            memory_fraction=st.floats(1e-9, 1),
            max_tokens=st.integers(256, 2**31 - 1),
            prefix_caching=st.booleans(),
        ),
        "streams": _some(compute_priority=st.sampled_from(["high", "normal"])),
        "cuda_graphs": _some(enabled=st.sampled_from(["auto", True, False]), per_slot=st.booleans()),
        "num_threads": st.none() | st.integers(1, 1024),
    },
)
_PIPELINES = st.fixed_dictionaries(
    {"engine": st.just("e")},
    optional={
        "system": st.none() | _TEXTS | _LOOKALIKES,
        "sampling": _some(
            temperature=st.floats(0, 2),
            top_p=st.floats(1e-300, 1),
            top_k=st.integers(0, 99),
            max_tokens=st.none() | st.integers(1, 2**31 - 1),
        ),
        "models": st.lists(_TEXTS | _LOOKALIKES, max_size=3),
        "priority": st.integers(-1000, 1000),
        "on_bad_line": st.sampled_from(["record", "reject"]),
        "output": _some(order=st.sampled_from(["input", "completion"]), format=st.sampled_from(["batch", "plain"])),
    },
)
CONFIGS = st.fixed_dictionaries(
    {
        "engines": st.dictionaries(_NAMES, _ENGINES, max_size=2),
        "pipelines": st.dictionaries(_NAMES, _PIPELINES, min_size=1, max_size=2),
    },
    optional={"daemon": _DAEMONS},
).map(lambda config: config | {"engines": config["engines"] | {"e": {"model": {"path": "m"}}}})


@given(CONFIGS)
@hypothesis.settings(deadline=None, max_examples=50)
def test_the_effective_configuration_gives_the_same_settings_again(config: dict[str, Any]) -> None:
    """What `gapless check` prints can be saved anywhere and run; saved and printed again it is the same text."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        settings = load(folder, json.dumps(config))
        text = render_effective(settings)
        (folder / "elsewhere").mkdir()
        again = load(folder / "elsewhere", text)
    assert again == settings
    assert render_effective(again) == text


@given(_PIPELINES)
@hypothesis.settings(deadline=None)
def test_a_journal_gives_back_the_settings_that_a_file_was_claimed_with(config: dict[str, Any]) -> None:
    """The record survives JSON."""
    settings = PipelineSettings.read(config, Path("/"))
    record = json.loads(json.dumps(settings.to_record()))
    assert PipelineSettings.from_record(record, Path("x.journal")) == settings
