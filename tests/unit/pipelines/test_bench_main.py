"""The benchmark as it is called, on a fake model and on a tiny one of random weights."""

import json

import pytest
from tiny_models import config_of

from daemon import cli
from pipelines import bench
from pipelines.benchmark import bandwidth, drawing
from pipelines.benchmark.ablation import AblationRow
from pipelines.benchmark.bandwidth import measure_bandwidth
from pipelines.benchmark.traffic import Traffic, ValueBytes, read_traffic
from pipelines.config import CacheDtype, EngineConfig, KvCacheConfig, ModelConfig, Quantization
from pipelines.core.runner import GraphUse
from pipelines.core.scheduler import Scheduler
from pipelines.models import source

DEVICE_PARTS = {"busy", "unproven", "idle_host", "idle_h2d", "idle_empty", "residue"}
FAKE = ["--model", "fake:step_ms=1", "--scale", "0.1"]  # 48 requests of 4 tokens and more


@pytest.fixture(autouse=True)
def little_memory(monkeypatch):
    """Bandwidth is measured on 16 MiB: fast, and no figure to believe."""
    monkeypatch.setattr(bandwidth, "_CPU_BYTES", 1 << 24)


@pytest.fixture
def tiny_config(tmp_path):
    config = config_of("llama")
    config.max_position_embeddings = 512
    config.save_pretrained(tmp_path)
    return tmp_path / "config.json"


def check_mode(record, num_tokens):
    assert record["generated_tokens"] == num_tokens
    assert record["tokens_per_s"] == pytest.approx(num_tokens / record["seconds"])
    assert record["ms_per_step"] == pytest.approx(1e3 * record["seconds"] / record["steps"])
    assert set(record["device_s"]) == DEVICE_PARTS
    assert sum(record["device_s"].values()) == pytest.approx(record["seconds"])
    assert abs(record["device_s"]["residue"]) <= max(1e-3 * record["seconds"], 1e-2)
    assert record["busy_share"] == pytest.approx(record["device_s"]["busy"] / record["seconds"])


def test_a_model_of_random_weights_is_measured_in_both_modes(tiny_config, tmp_path, capsys):
    """Every request gets exactly its tokens, in both modes the same, and the device's time adds up to the whole."""
    arguments = ["--config", str(tiny_config), "--random-weights", "--device", "cpu", "--workload", "rollouts"]
    result = tmp_path / "result.json"
    assert bench.main([*arguments, "--scale", "0.0001", "--warm-up", "2", "--json", str(result)]) == 0
    record = json.loads(result.read_text())
    for mode in ("sync", "async"):
        check_mode(record["modes"][mode], 32 * 8)
        assert record["modes"][mode]["steps"] >= 8
        assert record["modes"][mode]["roofline"]["decode_steps"] == record["modes"][mode]["steps"] - 1
        assert record["modes"][mode]["roofline"]["ratio"] > 0
    assert record["saving"]["same_tokens"] is True
    assert record["workload"] == {
        "name": "rollouts",
        "scale": 0.0001,
        "requests": 32,
        "prompt_tokens": 8192,
        "new_tokens": 256,
    }
    assert record["traffic"]["kv_bytes"] == 384
    assert record["bandwidth"]["bytes_per_s"] > 0
    assert {"format", "machine", "model", "engine", "repeat", "warm_up_tokens", "random_config"} < record.keys()
    shown = capsys.readouterr().out
    assert "same tokens: yes" in shown
    assert "roofline: 0.3 MB of weights a step and 384 bytes of KV a token of context" in shown


def test_random_weights_need_no_other_model(tiny_config, tmp_path, monkeypatch):
    """The adapter's are saved in a temporary folder, the native decoder makes its own; the embedded model need not be there."""
    monkeypatch.setattr(source, "_file_in_package", None)
    for implementation in ("native", "transformers"):
        result = tmp_path / f"{implementation}.json"
        arguments = ["--config", str(tiny_config), "--random-weights", "--device", "cpu", "--scale", "0.01"]
        arguments += ["--set", f"model.implementation={implementation}", "--warm-up", "1", "--modes", "async"]
        assert bench.main([*arguments, "--json", str(result)]) == 0
        record = json.loads(result.read_text())
        assert record["random_config"] == str(tiny_config)
        assert ("native" in record["model"]) == (implementation == "native")


def test_modes_are_repeated_in_turn(tmp_path, capsys):
    result = tmp_path / "result.json"
    assert bench.main([*FAKE, "--repeat", "2", "--json", str(result)]) == 0
    told = [line.partition(":")[0] for line in capsys.readouterr().err.splitlines()]
    assert told == ["sync, run 1 of 2", "async, run 1 of 2", "sync, run 2 of 2", "async, run 2 of 2"]
    assert len(json.loads(result.read_text())["modes"]["sync"]["all_seconds"]) == 2


def test_the_ablation_has_a_row_for_each_part_and_one_for_the_noise(tmp_path, capsys):
    result = tmp_path / "result.json"
    assert bench.main([*FAKE, "--ablate", "--json", str(result)]) == 0
    rows = json.loads(result.read_text())["ablation"]
    assert [row["change"] for row in rows] == [
        "nothing", "schedule=sync", "schedule=sync, buffers.slots=1", "streams.h2d=compute", "streams.d2h=compute",
        "streams.h2d=compute, streams.d2h=compute", "buffers.slots=3", "buffers.pinned=false",
        "streams.compute_priority=normal", "cuda_graphs.enabled=false", "cuda_graphs.per_slot=true",
        "cuda_graphs.per_slot=true, cuda_graphs.share_pool=false", "nothing, again",
    ]  # fmt: skip
    base, sync, one, h2d, d2h, both, slots, pinned, priority, graphs, sets, pools, again = [
        row["engine"] for row in rows
    ]
    streams = {"h2d": "dedicated", "d2h": "dedicated", "compute_priority": "high"}
    assert base == again == base | {"schedule": "async", "streams": streams}
    assert sync == base | {"schedule": "sync"}
    assert one == sync | {"buffers": {"slots": 1, "pinned": True}}
    assert [h2d["streams"], d2h["streams"], both["streams"], priority["streams"]] == [
        streams | {"h2d": "compute"}, streams | {"d2h": "compute"}, streams | {"h2d": "compute", "d2h": "compute"},
        streams | {"compute_priority": "normal"},
    ]  # fmt: skip
    assert slots == base | {"buffers": {"slots": 3, "pinned": True}}
    assert pinned == base | {"buffers": {"slots": 2, "pinned": False}}
    assert graphs == base | {"cuda_graphs": base["cuda_graphs"] | {"enabled": "false"}}
    assert sets == base | {"cuda_graphs": base["cuda_graphs"] | {"per_slot": True}}
    assert pools == base | {"cuda_graphs": base["cuda_graphs"] | {"per_slot": True, "share_pool": False}}
    for row in rows:
        check_mode(row, rows[0]["generated_tokens"])
    assert "changed against schedule=async, streams.h2d=dedicated" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("use", "cells"),
    [
        (None, ["0", "", "", ""]),
        (GraphUse(1, 57, 1, 300 << 20, 500 << 20, 4.04), ["57", "300", "500", "4.0"]),
        (GraphUse(2, 114, 1, 310 << 20, 710 << 20, 8.0), ["2 x 57", "310", "710", "8.0"]),
        (GraphUse(2, 114, 2, 600 << 20, 1000 << 20, 8.0), ["2 x 57", "600 in 2", "1,000", "8.0"]),
    ],
)
def test_a_row_says_what_its_graphs_took(use, cells):
    """One set, two sets from one pool, two from a pool each."""
    row = AblationRow("x", EngineConfig("e", ModelConfig("fake:")), "", use, None)
    assert row.graph_cells() == cells


def test_a_sweep_gives_milliseconds_for_each_batch_size(tmp_path):
    """The fake device works 1 ms on a step, whatever its size; steps with prompts in them do not count."""
    result = tmp_path / "result.json"
    assert bench.main([*FAKE, "--step-sweep", "1,2", "--json", str(result)]) == 0
    rows = json.loads(result.read_text())["step_sweep"]
    assert [row["batch_size"] for row in rows] == [1, 2]
    assert all(1166 <= row["context"] <= 1170 and row["num_steps"] >= 280 for row in rows)
    assert all(row["ms_per_step"] == pytest.approx(1, rel=0.5) for row in rows)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--model", "/no/such/model"], 2, "model.path /no/such/model: found no such folder"),
        (
            ["--model", "fake:", "--workload", "rollouts"],
            2,
            "needs a context of 8,448 tokens, found a model made for 8,192: lower",
        ),
        (["--model", "fake:", "--set", "streams.h2d=x"], 2, "expected one of dedicated, compute"),
        (["--config", "/no/such.json", "--random-weights"], 2, "--config /no/such.json: found no such file"),
        (["--model", "fake:", "--random-weights"], 2, "expected both"),
        (["--config", "gapless.yaml"], 2, "No gapless.yaml is read here"),  # which is what all other commands mean
        (["--model", "fake:", "--set", "max_context=64"], 2, "--set max_context=64: the workload needs "),
    ],
)
def test_a_mistake_is_one_line_and_an_exit_code(arguments, code, message, capsys):
    assert bench.main(arguments) == code
    told = capsys.readouterr().err
    assert message in told
    assert len(told.splitlines()) == 1


def test_a_config_of_no_model_is_named(tmp_path, capsys):
    (tmp_path / "config.json").write_text('{"model_type": "no-such"}')
    assert bench.main(["--config", str(tmp_path / "config.json"), "--random-weights"]) == 2
    assert "no model can be made of it" in capsys.readouterr().err


def test_a_picture_that_cannot_be_drawn_is_refused_before_anything_is_measured(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(drawing, "find_spec", lambda _: None)
    assert bench.main([*FAKE, "--timeline", str(tmp_path / "t.png")]) == 2
    captured = capsys.readouterr()
    assert "pip install 'gapless[bench]'" in captured.err
    assert captured.out == ""


def test_a_run_that_loses_tokens_fails(monkeypatch, capsys):
    """No figure of a run is shown that did not do its work."""
    commit = Scheduler.commit

    def commit_too_little(self, batch, tokens):
        for row in batch.rows:
            if row.sequence.request.key == 5:
                row.sequence.max_num_tokens = row.sequence.num_prompt_tokens + 2
        return commit(self, batch, tokens)

    monkeypatch.setattr(Scheduler, "commit", commit_too_little)
    assert bench.main([*FAKE, "--modes", "async"]) == 1
    captured = capsys.readouterr()
    assert "request 5: found 2 tokens, expected " in captured.err
    assert "seconds" not in captured.out


def test_gapless_bench_passes_everything_on(capfd):
    """It is a process of its own, whose exit code is the command's."""
    assert cli.main(["bench", *FAKE, "--modes", "async"]) == 0
    assert "stream-busy" in capfd.readouterr().out
    assert cli.main(["bench", "--model", "/no/such/model"]) == 2
    assert cli.main(["bench", "--help"]) == 0
    assert "usage: gapless bench" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("family", "expected"),
    [
        # Tied: 199 x 48 once, 3 layers of 20,064, a norm of 48. KV: 2 x 2 heads x 8 x 4 bytes in 3 layers.
        ("llama", Traffic(weight_bytes=4 * (9552 + 3 * 20064 + 48), kv_bytes=384, windowed_kv_bytes=0, window=None)),
        # Not tied: the embedding is not read, the head is as large. Biases of 48 + 2 x 16.
        ("qwen2", Traffic(weight_bytes=4 * (9552 + 3 * 20144 + 48), kv_bytes=384, windowed_kv_bytes=0, window=None)),
        ("mistral", Traffic(weight_bytes=4 * (9552 + 3 * 20064 + 48), kv_bytes=0, windowed_kv_bytes=384, window=7)),
    ],
)
def test_what_a_step_moves_is_read_from_the_configuration(family, expected, tmp_path):
    config_of(family).save_pretrained(tmp_path)
    assert read_traffic(tmp_path, ValueBytes(4, 4, 4)) == expected


def test_what_a_step_moves_in_float8_is_counted_so(tmp_path):
    """Projections and KV in one byte, norms and head in two: 3 layers of 48 x 80, 48 x 48 and 3 x 48 x 96."""
    config_of("llama").save_pretrained(tmp_path)
    in_float8 = EngineConfig(
        "e", ModelConfig("x", quantization=Quantization.FP8), kv_cache=KvCacheConfig(dtype=CacheDtype.FP8)
    )
    linears = 3 * (48 * 80 + 48 * 48 + 3 * 48 * 96)
    others = 9552 + 3 * 2 * 48 + 48
    found = read_traffic(tmp_path, ValueBytes.of(in_float8, 2))
    assert found == Traffic(weight_bytes=linears + 2 * others, kv_bytes=96, windowed_kv_bytes=0, window=None)


def test_float8_is_measured_by_its_keys(tiny_config, tmp_path, capsys):
    """The benchmark takes the engine's keys; what a step moves is given in float8."""
    arguments = ["--config", str(tiny_config), "--random-weights", "--device", "cpu", "--workload", "rollouts"]
    changes = ["--set", "kv_cache.dtype=fp8", "--set", "model.quantization=fp8", "--modes", "sync"]
    result = tmp_path / "result.json"
    rest = ["--scale", "0.0001", "--warm-up", "2", "--json", str(result)]
    assert bench.main([*arguments, *changes, *rest]) == 0
    record = json.loads(result.read_text())
    assert record["modes"]["sync"]["generated_tokens"] == 32 * 8
    assert record["traffic"]["kv_bytes"] == 96
    shown = capsys.readouterr().out
    assert "native llama of float8 projections" in shown
    assert "float8_e4m3fn" in shown


def test_bandwidth_is_measured_by_reading():
    import torch

    num_threads = torch.get_num_threads()
    found = measure_bandwidth(torch.device("cpu"), num_threads=1, num_bytes=1 << 24)
    assert 1e8 < found.bytes_per_s < 1e12
    assert "1 thread" in found.how
    assert torch.get_num_threads() == num_threads
