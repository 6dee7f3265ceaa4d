"""What an edit changes: keys, their classes, what is added and removed, and what an engine has to be started anew for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.settings import load_settings
from daemon.settings_daemon import DaemonSettings
from daemon.settings_diff import diff_settings, needs_drain
from daemon.settings_engine import EngineSettings
from daemon.settings_fields import Change, change_of, iterate_keys
from daemon.settings_pipeline import PipelineSettings

BASE = """
daemon: {spool: /s}
engines: {main: {model: {path: 'fake:'}}}
pipelines: {chat: {engine: main}}
"""


@pytest.fixture
def settings(tmp_path):
    def load(text):
        path = tmp_path / "gapless.yaml"
        path.write_text(text)
        return load_settings([path])

    return load


def engine(**keys):
    return EngineSettings.model_validate({"model": {"path": "fake:"}} | keys)


def test_equal_configurations_differ_in_nothing(settings):
    assert not diff_settings(settings(BASE), settings(BASE))


def test_each_changed_key_is_named_with_both_values_and_its_class(settings):
    edited = BASE.replace("/s", "/s, settle_s: 1").replace("engine: main", "engine: main, output: {order: completion}")
    diff = diff_settings(settings(BASE), settings(edited.replace("'fake:'}", "'fake:', dtype: float32}")))
    assert diff.lines() == [
        "daemon.settle_s: 2.0 -> 1.0; takes effect at once",
        "engines.main.model.dtype: auto -> float32; takes effect after a drain",
        "pipelines.chat.output.order: input -> completion; takes effect with the next file claimed",
    ]
    assert diff.refusals == ()


def test_lists_and_mappings_are_shown_as_one_would_write_them_in_a_line(settings):
    """Block style squeezed into a line reads like something else: "- a - b"."""
    keys = "models: [a, b], chat_template_kwargs: {enable_thinking: false}, answer: {choice: [good, 'so, so']}"
    diff = diff_settings(settings(BASE), settings(BASE.replace("engine: main", f"engine: main, {keys}")))
    shown = [line.partition("pipelines.chat.")[2].partition(";")[0] for line in diff.lines()]
    assert sorted(shown) == [
        "answer: null -> {choice: [good, 'so, so']}",
        "chat_template_kwargs: {} -> {enable_thinking: false}",
        "models: [] -> [a, b]",
    ]


def test_what_waits_for_a_restart_is_a_refusal_with_both_values(settings):
    diff = diff_settings(settings(BASE), settings(BASE.replace("/s", "/other, http: {port: 1}")))
    assert diff.refusals == (
        "daemon.spool: found /other, but the daemon runs with /s, and a change waits for a restart",
        "daemon.http.port: found 1, but the daemon runs with 9400, and a change waits for a restart",
    )


def test_engines_and_pipelines_that_come_and_go_are_named(settings):
    diff = diff_settings(settings(BASE), settings(BASE.replace("main", "other").replace("chat", "label")))
    assert (diff.added, diff.removed) == (
        ("engines.other", "pipelines.label"), ("engines.main", "pipelines.chat"),
    )  # fmt: skip
    assert len(diff.lines()) == 4


def test_long_values_are_cut(settings):
    diff = diff_settings(
        settings(BASE), settings(BASE.replace("engine: main", f"engine: main, system: {'long ' * 50}"))
    )
    assert max(map(len, diff.lines())) < 200


@pytest.mark.parametrize("kind", [DaemonSettings, EngineSettings, PipelineSettings])
def test_every_key_has_a_class_that_its_section_can_keep(kind):
    """Only engines can be started anew, and only what is claimed keeps its settings."""
    allowed = {
        DaemonSettings: {Change.LIVE, Change.CLAIM, Change.RESTART},
        EngineSettings: {Change.LIVE, Change.ALLOCATED, Change.DRAIN},
        PipelineSettings: {Change.CLAIM},
    }
    assert {change_of(field) for _, field in iterate_keys(kind)} <= allowed[kind]


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({}, False),
        ({"schedule": "sync", "max_restarts": 1, "stall_s": 3.0}, False),
        ({"batch": {"max_num_seqs": 1, "max_num_batched_tokens": 8192}}, False),
        ({"batch": {"max_num_seqs": 257}}, True),
        ({"batch": {"max_num_batched_tokens": 8193}}, True),
        ({"model": {"path": "fake:", "device": "cpu"}}, True),
        ({"kv_cache": {"block_size": 32}}, True),
        ({"buffers": {"slots": 3}}, True),
    ],
)
def test_an_engine_is_started_anew_for_what_it_has_not_allocated(keys, expected):
    assert needs_drain(engine(), engine(**keys)) is expected


@given(st.integers(1, 600), st.integers(1, 600))
def test_limits_within_what_is_allocated_never_drain(have, want):
    """And those beyond always do."""
    assert needs_drain(engine(batch={"max_num_seqs": have}), engine(batch={"max_num_seqs": want})) is (want > have)
