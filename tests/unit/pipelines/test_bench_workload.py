"""The workloads are the ones that other engines are measured on: the same draws, literally."""

import hashlib

import pytest

from pipelines.benchmark.workload import WorkloadName, build_workload, equal_prompts, requests_of

# Of each (name, scale, seed): prompt tokens, new tokens, first ids of the first prompt, lengths of the first four prompts, new
# tokens of the first four and the last; then the start of the SHA-256 of repr((prompts, new_tokens)), which holds every draw.
ROLLOUTS, OFFLINE = WorkloadName.ROLLOUTS, WorkloadName.OFFLINE
IDS = [111680, 51494, 100346, 117686]
OFFLINE_IDS, OFFLINE_LENGTHS = [68013, 64691, 54075, 103734], [382, 1649, 270, 410]
EXPECTED = {
    (ROLLOUTS, 1.0): (8192, 262144, IDS, [256] * 4, [8192] * 4, 8192, "e40d2072e001a659"),
    (ROLLOUTS, 0.25): (8192, 65536, IDS, [256] * 4, [2048] * 4, 2048, "b935362ee070c1e8"),
    (ROLLOUTS, 0.0001): (8192, 256, IDS, [256] * 4, [8] * 4, 8, "11fe9d754600833e"),
    (OFFLINE, 1.0): (528654, 262220, OFFLINE_IDS, OFFLINE_LENGTHS, [207, 151, 188, 78], 100, "ca6454d45c5a8da9"),
    (OFFLINE, 0.1): (528654, 25142, OFFLINE_IDS, OFFLINE_LENGTHS, [20, 14, 18, 7], 9, "104aaeb025bda0a1"),
}  # fmt: skip


def digest(value):
    return hashlib.sha256(repr(value).encode()).hexdigest()[:16]


@pytest.mark.parametrize(("name", "scale"), EXPECTED)
def test_a_workload_is_drawn_as_for_the_other_engines(name, scale):
    """Figures that were taken from the scripts which measure the others."""
    workload = build_workload(name, scale)
    prompts, new = workload.prompts, workload.new_tokens
    lengths = [len(prompt) for prompt in prompts[:4]]
    found = (workload.num_prompt_tokens, workload.num_new_tokens, prompts[0][:4], lengths, new[:4], new[-1])
    assert (*found, digest((prompts, new))) == EXPECTED[name, scale]


def test_equal_prompts_are_drawn_as_for_the_other_engines():
    prompts = equal_prompts(3, 1024)
    assert (prompts[0][:3], prompts[2][-3:]) == ([111680, 51494, 100346], [11260, 80278, 96745])
    assert digest(prompts) == "8f0aa37c00087acd"


def test_another_seed_is_another_workload():
    workload = build_workload(OFFLINE, seed=3)
    assert (workload.num_prompt_tokens, workload.num_new_tokens) == (510310, 255967)


def test_scale_shortens_answers_and_leaves_prompts_alone():
    """So that a short run prefills what a long one does."""
    whole, part = (build_workload(WorkloadName.MIXED_CPU, scale) for scale in (1.0, 0.25))
    assert whole.prompts == part.prompts
    assert part.num_new_tokens < 0.3 * whole.num_new_tokens


def test_the_context_holds_the_longest_sequence():
    assert build_workload(ROLLOUTS).context == 256 + 8192
    workload = build_workload(OFFLINE)
    longest = max(len(prompt) + new for prompt, new in zip(workload.prompts, workload.new_tokens, strict=True))
    assert (longest, workload.context) == (4019, 4032)


def test_requests_are_greedy_and_end_by_their_length_alone():
    """Ids that a small vocabulary does not have are folded into it."""
    requests = requests_of([[7, 1000, 1999], [5]], [3, 4], vocab_size=1000)
    assert [request.prompt_token_ids for request in requests] == [(7, 0, 999), (5,)]
    assert [(request.key, request.max_tokens, request.temperature) for request in requests] == [
        (0, 3, 0.0),
        (1, 4, 0.0),
    ]
    assert all(not request.stop_token_ids and request.n == 1 for request in requests)
