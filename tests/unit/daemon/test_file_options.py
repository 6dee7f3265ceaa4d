"""Options of one file: a subset of its pipeline's settings, with mistakes told as those of the configuration are."""

import pytest

from daemon.errors import SettingsError
from daemon.file_options import PIPELINE_ONLY, FileOptions, read_options
from daemon.settings_pipeline import LimitsSettings, OnBadLine, OutputOrder, PipelineSettings, SamplingSettings

PIPELINE = PipelineSettings(
    engine="e",
    system="be brief",
    models=("m",),
    strict_model=True,
    sampling=SamplingSettings(temperature=0.5, max_tokens=100),
    limits=LimitsSettings(deadline_s=60.0),
    priority=2,
)


@pytest.fixture
def read(tmp_path):
    def read(text):
        path = tmp_path / "f.options.yaml"
        path.write_text(text)
        return read_options(path, PIPELINE)

    return read


def mistakes(read, text):
    with pytest.raises(SettingsError) as caught:
        read(text)
    return [str(problem) for problem in caught.value.problems]


def test_what_is_given_replaces_what_the_pipeline_says_and_the_rest_stays(read):
    found = read(
        "priority: -7\nsystem: null\non_bad_line: reject\noutput: {order: completion}\n"
        "sampling: {temperature: 0}\nlimits: {deadline_s: 5, request_timeout_s: 1.5}\n"
    )
    assert found == PIPELINE.model_copy(
        update={
            "priority": -7,
            "system": None,
            "on_bad_line": OnBadLine.REJECT,
            "output": PIPELINE.output.model_copy(update={"order": OutputOrder.COMPLETION}),
            "sampling": SamplingSettings(temperature=0.0, max_tokens=100),
            "limits": LimitsSettings(deadline_s=5.0, request_timeout_s=1.5),
        }
    )


def test_null_takes_a_limit_away_and_an_empty_section_changes_nothing(read):
    assert read("limits: {deadline_s: null}\n").limits.deadline_s is None
    assert read("limits:\nsampling:\n") == PIPELINE
    assert read("{}\n") == PIPELINE


def test_what_a_template_is_told_and_what_answers_look_like_are_replaced_as_a_whole(read):
    """A schema that is half of one file and half of another would be neither's."""
    first = read("chat_template_kwargs: {a: 1}\nanswer: {json_schema: {type: object}}\n")
    assert first.chat_template_kwargs == {"a": 1}
    assert first.answer == {"json_schema": {"type": "object"}}
    assert read("answer: {choice: [x]}\n").answer == {"choice": ["x"]}


def test_a_file_has_a_say_in_everything_but_what_its_pipeline_is():
    assert set(FileOptions.model_fields) == set(PipelineSettings.model_fields) - PIPELINE_ONLY


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "priority: high\n",
            'f.options.yaml:1:11: priority: found text "high", expected a whole number from -1000 to 1000',
        ),
        (
            "sampling:\n  temprature: 1\n",
            "f.options.yaml:2:3: sampling.temprature: found an unknown key, expected one of temperature, top_p, top_k,",
        ),
        (
            "output: {order: backwards}\n",
            'f.options.yaml:1:17: output.order: found text "backwards", expected one of input, completion',
        ),
        (
            "limits: {deadline_s: -1}\n",
            "f.options.yaml:1:22: limits.deadline_s: found -1, expected a number above 0 and at most 31622400, or null",
        ),
        ("priority: 1\npriority: 2\n", "f.options.yaml:2:1: priority: found the same key a second time"),
        ("- 1\n", "f.options.yaml:1:1: found a list, expected a mapping with some of the keys system,"),
        ("", "f.options.yaml: found an empty file, expected a mapping with some of the keys system,"),
        ("priority: [\n", "f.options.yaml:2:1: found broken YAML"),
        ("sampling: {temprature: 1}\n", 'did you mean "temperature"?'),
        ("max_tokens: 5\n", "did you mean sampling.max_tokens?"),
    ],
)
def test_a_mistake_names_its_place_what_was_found_and_what_was_expected(read, text, expected):
    (mistake,) = mistakes(read, text)
    assert expected in mistake


@pytest.mark.parametrize("key", sorted(PIPELINE_ONLY))
def test_what_only_the_pipeline_says_is_refused(read, key):
    (mistake,) = mistakes(read, f"{key}: x\n")
    assert f"{key}: found an unknown key" in mistake


def test_all_mistakes_are_told_in_the_order_of_the_file(read):
    assert [mistake.split(":")[1] for mistake in mistakes(read, "priority: x\nengine: y\nsystem: 5\n")] == [
        "1",
        "2",
        "3",
    ]


def test_options_that_cannot_be_read_are_a_mistake_and_not_no_options(tmp_path):
    with pytest.raises(SettingsError, match="no such file"):
        read_options(tmp_path / "gone.options.yaml", PIPELINE)
    (tmp_path / "x.options.yaml").write_bytes(b"system: \xff\n")
    with pytest.raises(SettingsError, match="no UTF-8"):
        read_options(tmp_path / "x.options.yaml", PIPELINE)
