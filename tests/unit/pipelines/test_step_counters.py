"""What the engine says of itself: each step, request and sequence is counted once, whatever preemption and choices do."""

import time
from collections import Counter
from dataclasses import replace

import pytest
from rig import Rig, token_request

from pipelines.config import Schedule
from pipelines.core.runner import MemoryTraffic
from pipelines.fake import FakeOptions, FakeRunner

ALPHABET = range(10, 30)
COUNTS = (
    "prompt_tokens", "generation_tokens", "preemptions", "padding_tokens", "prefix_query_tokens", "prefix_hit_tokens",
    "decode_s", "decode_floor_s",
)  # fmt: skip
LISTS = (
    "step_s", "gap_s", "host_s", "num_batched", "num_batched_tokens", "queue_s", "first_token_s", "output_token_s",
)  # fmt: skip
TIMES = ("busy_s", "unproven_s", "host_s", "h2d_s", "empty_s")


class PaddingRunner(FakeRunner):
    """Says of each step that three tokens of it were padding."""

    def take_step_times(self):
        return [replace(step, num_padding=3) for step in super().take_step_times()]


def run(requests, runner=FakeRunner, schedule=Schedule.ASYNC, limits=None, **fake):
    """Run to the end; return all that was reported, added up, and the rig."""
    rig = Rig(runner(FakeOptions(**fake), ALPHABET, 5), [requests], schedule, **(limits or {}))
    rig.run()
    rig.engine.turn()  # without work, so that it reports
    total = Counter()
    values = {name: [] for name in LISTS}
    for stats in rig.source.stats:
        total.update({name: getattr(stats, name) for name in COUNTS})
        total.update({f"device.{name}": getattr(stats.device_time, name) for name in TIMES})
        for name in LISTS:
            values[name] += getattr(stats, name)
    return total, values, rig


def request(key, prompt_len=5, max_tokens=6, **changes):
    return token_request(key, range(100, 100 + prompt_len), max_tokens, **changes)


def test_every_step_request_and_sequence_has_one_value():
    total, values, _ = run([request(1), request(2, max_tokens=1), request(3, n=3)])
    assert (total["prompt_tokens"], total["generation_tokens"]) == (15, 6 + 1 + 18)
    assert (len(values["queue_s"]), len(values["first_token_s"])) == (3, 3), "choices that fork did not arrive"
    assert len(values["output_token_s"]) == 4, "a sequence of one token has no token after the first"
    num_steps = len(values["num_batched"])
    assert [len(values[name]) for name in ("step_s", "gap_s", "host_s", "num_batched_tokens")] == [num_steps] * 4
    assert sum(values["num_batched_tokens"]) >= 15 + 6 + 1 + 18 - 5, "the prompt and each token but the last go in"


def test_a_preempted_request_counts_its_prompt_and_its_wait_once():
    total, values, _ = run([request(key, 8, 16) for key in range(4)], limits={"num_blocks": 10, "looks_ahead": False})
    assert total["preemptions"] > 0
    assert (total["prompt_tokens"], total["generation_tokens"]) == (32, 64)
    assert (len(values["queue_s"]), len(values["first_token_s"]), len(values["output_token_s"])) == (4, 4, 4)


@pytest.mark.parametrize("schedule", Schedule)
def test_gaps_and_steps_are_what_the_device_time_is_made_of(schedule):
    """So that a histogram of gaps and the idle counters cannot tell different stories."""
    total, values, _ = run([request(key) for key in range(3)], schedule=schedule, step_ms=2)
    assert sum(values["gap_s"]) == pytest.approx(total["device.host_s"] + total["device.h2d_s"])
    assert sum(values["step_s"]) == pytest.approx(total["device.busy_s"] + total["device.unproven_s"])


def test_waiting_for_the_device_is_no_work_of_the_host():
    started_s = time.monotonic()
    _, values, _ = run([request(1, max_tokens=20)], step_ms=10)
    assert sum(values["host_s"]) < (time.monotonic() - started_s) / 2
    assert all(seconds > 0 for seconds in values["host_s"])


def test_times_of_a_request_are_in_the_order_in_which_they_happen():
    _, values, _ = run([request(1, prompt_len=40, max_tokens=5)], step_ms=20)
    (queue_s,), (first_s,), (token_s,) = values["queue_s"], values["first_token_s"], values["output_token_s"]
    assert queue_s + 0.055 <= first_s, "a prompt of 40 tokens takes three steps of at most 16"
    assert token_s >= 0.01, "20 ms, but for what the first one was seen late"


def test_padding_is_what_the_runner_says():
    total, values, _ = run([request(1)], PaddingRunner)
    assert total["padding_tokens"] == 3 * len(values["step_s"])


def test_tokens_found_in_the_prefix_cache_are_told():
    """The second request has the first one's prompt, but for the token that has to be computed for its scores."""
    first, second = request(1, prompt_len=12, max_tokens=1), request(2, prompt_len=12, max_tokens=1)
    rig = Rig(FakeRunner(FakeOptions(), ALPHABET, 5), [[first]], prefix_caching=True)
    rig.run()
    rig.source.arrivals.append([second])
    rig.run()
    rig.engine.turn()
    total = Counter()
    for stats in rig.source.stats:
        total.update({name: getattr(stats, name) for name in ("prefix_query_tokens", "prefix_hit_tokens")})
    assert total["prefix_query_tokens"] == 24
    assert total["prefix_hit_tokens"] == 8, "whole blocks of 4, but not the last token"


def test_decode_steps_are_held_against_what_they_have_to_read():
    """Prefill steps are left out: 10 MB at 2 GB/s take 5 ms for each of the others, plus 1 KB a token of context."""
    rig = Rig(FakeRunner(FakeOptions(step_ms=8), ALPHABET, 5), [[request(1, prompt_len=40, max_tokens=5)]])
    rig.engine._traffic = MemoryTraffic(10_000_000, 1000, 2e9)
    rig.run()
    rig.engine.turn()
    floors_s = sum(stats.decode_floor_s for stats in rig.source.stats)
    decode_s = sum(stats.decode_s for stats in rig.source.stats)
    num_decodes = 4  # the first token comes of the prompt
    assert decode_s == pytest.approx(num_decodes * 0.008)
    assert num_decodes * 0.005 < floors_s < num_decodes * (0.005 + 48 * 1000 / 2e9)


def test_without_traffic_there_is_no_roofline():
    total, _, _ = run([request(1)], step_ms=1)
    assert (total["decode_s"], total["decode_floor_s"]) == (0, 0)
