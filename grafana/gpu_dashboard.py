"""The dashboard *GPU*: where the device's time goes and what the engine does with it."""

from grafana_foundation_sdk.builders import dashboard as dashboard_builders

from grafana.panels import (
    AnyPanel,
    Query,
    Words,
    board,
    figure,
    filled,
    heat,
    lines,
    mark,
    name_variable,
    quantiles,
    stacked,
)

ENGINE = 'engine=~"$engine"'
CAUSES = {
    "busy": "green",
    "unproven": "#8ab8a0",
    "idle: no_work": "#d8d9da",
    "idle: feed": "orange",
    "idle: host": "red",
    "idle: h2d": "purple",
    "idle: output": "#7a1f1f",
    "idle: capture": "#5794f2",
    "idle: startup": "#8ab8ff",
    "idle: drain": "#b0b0b0",
    "idle: down": "#111217",
}


def gpu_dashboard() -> dashboard_builders.Dashboard:
    """Return it."""
    rows = [
        (9, [_band()]),
        (4, _figures()),
        (8, [_step_time(), _gaps(), _roofline()]),
        (8, [_tokens(), _occupancy()]),
        (8, [_sequences(), _kv_cache(), _prefix_cache(), _events()]),
        (8, [_waits(), _token_time()]),
        (7, _device()),
    ]
    marks = [
        mark("async or sync", f'changes(gapless_engine_schedule{{{ENGINE},schedule="sync"}}[1m]) > 0', "blue"),
        mark("restart", f"increase(gapless_engine_restarts_total{{{ENGINE}}}[1m]) > 0", "red"),
    ]
    found = board("gapless-gpu", "Gapless: GPU", "Whether the GPU is busy, and why it is not.")
    return filled(found, name_variable("engine", "gapless_engine_ready"), marks, rows)


def _rate(metric: str) -> str:
    return f"rate({metric}{{{ENGINE}}}[$__rate_interval])"


def _all_now(gauge: str) -> str:
    return f"sum({gauge}{{{ENGINE}}})"


def _all_per_s(counter: str) -> str:
    return f"sum({_rate(counter)})"


def _all_added(counter: str) -> str:
    return f"sum(increase({counter}{{{ENGINE}}}[$__rate_interval]))"


def _band() -> AnyPanel:
    return stacked(
        Words(
            "Where the device's time goes",
            "Every second of the device: proven busy, busy as far as can be told (unproven), or idle with its cause. "
            "The mean of the chosen engines; the whole is 100 %. Busy says that a step ran, not how well.",
            "percentunit",
        ),
        Query(f"avg({_rate('gapless_gpu_busy_seconds_total')})", "busy"),
        Query(f"avg({_rate('gapless_gpu_unproven_seconds_total')})", "unproven"),
        Query(f"avg by (cause) ({_rate('gapless_gpu_idle_seconds_total')})", "idle: {{cause}}"),
        colors=CAUSES,
        max_value=1,
    )


def _figures() -> list[AnyPanel]:
    return [
        figure(
            Words("Engines", "Whether the processes of all chosen engines are up.", "short"),
            Query(f"min(gapless_engine_ready{{{ENGINE}}})"),
            {1: "ready", 0: "not ready"},
        ),
        figure(
            Words("Busy, last minute", "Share of the last minute in which the device was proven busy.", "percentunit"),
            Query(f"avg(gapless_gpu_busy_ratio{{{ENGINE}}})"),
        ),
        figure(
            Words("Generated", "Tokens generated a second.", "tokens/s"),
            Query(_all_per_s("gapless_generation_tokens_total")),
        ),
        figure(
            Words("Running", "Sequences that have a seat in the engine.", "short"),
            Query(_all_now("gapless_requests_running")),
        ),
        figure(
            Words("Waiting", "Sequences in the engine that wait for a seat.", "short"),
            Query(_all_now("gapless_requests_waiting")),
        ),
        figure(
            Words("KV cache", "Share of the KV cache's blocks in use.", "percentunit"),
            Query(f"{_all_now('gapless_kv_blocks_used')} / {_all_now('gapless_kv_blocks_capacity')}"),
        ),
    ]


def _step_time() -> AnyPanel:
    return heat(
        Words("Step time", "How many steps took how long on the device.", "s"),
        f"sum by (le) (increase(gapless_step_seconds_bucket{{{ENGINE}}}[$__rate_interval]))",
    )


def _gaps() -> AnyPanel:
    return lines(
        Words(
            "Between the steps",
            "Gap: how long the device waited for a step although there was work. Host: the loop's own work for a step, "
            "which does not matter while it is shorter than the step.",
            "s",
        ),
        *quantiles("gapless_step_gap_seconds", ENGINE, "gap"),
        *quantiles("gapless_step_host_seconds", ENGINE, "host"),
    )


def _roofline() -> AnyPanel:
    return lines(
        Words(
            "Roofline ratio",
            "How near decode steps come to the least time that reading weights and context takes at the memory's peak "
            "bandwidth; 1 would be perfect, a large batch stays below. Known for native decoders on a GPU.",
            "percentunit",
        ),
        Query(
            f"{_all_per_s('gapless_decode_floor_seconds_total')} / {_all_per_s('gapless_decode_seconds_total')}",
            "decode steps",
        ),
        max_value=1,
    )


def _tokens() -> AnyPanel:
    return lines(
        Words("Tokens", "Tokens generated and prompt tokens taken in, a second.", "tokens/s"),
        Query(_all_per_s("gapless_generation_tokens_total"), "generated"),
        Query(_all_per_s("gapless_prompt_tokens_total"), "prompt"),
    )


def _occupancy() -> AnyPanel:
    steps = _all_per_s("gapless_batch_sequences_count")
    padding, useful = _all_per_s("gapless_padding_tokens_total"), _all_per_s("gapless_batch_tokens_sum")
    return lines(
        Words(
            "Occupancy and padding",
            "Occupancy: sequences in a step as a share of the seats. Padding: share of the tokens computed that only fill "
            "a captured graph.",
            "percentunit",
        ),
        Query(
            f"{_all_per_s('gapless_batch_sequences_sum')} / {steps} / (avg(gapless_seats_capacity{{{ENGINE}}}) > 0)",
            "occupancy",
        ),
        Query(f"{padding} / ({padding} + {useful})", "padding"),
        max_value=1,
    )


def _sequences() -> AnyPanel:
    return lines(
        Words("Sequences", "Sequences in the engine, with a seat and without, and how many seats there are.", "short"),
        Query(_all_now("gapless_requests_running"), "running"),
        Query(_all_now("gapless_requests_waiting"), "waiting"),
        Query(_all_now("gapless_seats_capacity"), "seats"),
    )


def _kv_cache() -> AnyPanel:
    return lines(
        Words("KV cache blocks", "Blocks of the KV cache in use, of those there are.", "short"),
        Query(_all_now("gapless_kv_blocks_used"), "used"),
        Query(_all_now("gapless_kv_blocks_capacity"), "capacity"),
    )


def _prefix_cache() -> AnyPanel:
    hits, queries = "gapless_prefix_cache_hit_tokens_total", "gapless_prefix_cache_query_tokens_total"
    return lines(
        Words("Prefix cache", "Share of the tokens of admitted sequences that were cached.", "percentunit"),
        Query(f"{_all_per_s(hits)} / {_all_per_s(queries)}", "hits"),
        max_value=1,
    )


def _events() -> AnyPanel:
    return lines(
        Words(
            "Preemptions and restarts",
            "Sequences that lost their blocks to others, steps that did not fit into the device's memory, and processes that "
            "died, within the interval.",
            "short",
        ),
        Query(_all_added("gapless_preemptions_total"), "preemptions"),
        Query(_all_added("gapless_engine_restarts_total"), "restarts"),
        Query(_all_added("gapless_steps_taken_back_total"), "steps taken back"),
    )


def _waits() -> AnyPanel:
    return lines(
        Words(
            "Waiting for the first token", "From a request's arrival at the engine to its first step and token.", "s"
        ),
        *quantiles("gapless_queue_seconds", ENGINE, "first step"),
        *quantiles("gapless_time_to_first_token_seconds", ENGINE, "first token"),
    )


def _token_time() -> AnyPanel:
    return lines(
        Words("Time a token", "Mean time of a sequence's tokens after the first.", "s"),
        *quantiles("gapless_time_per_output_token_seconds", ENGINE, "token"),
    )


def _device() -> list[AnyPanel]:
    return [
        lines(
            Words(
                "Memory bandwidth and multiprocessors",
                "What the driver's counters say of how well the GPU is used; needs GPM (Hopper and later).",
                "percentunit",
            ),
            Query("gapless_nvml_dram_bandwidth_ratio", "bandwidth, GPU {{gpu}}"),
            Query("gapless_nvml_sm_ratio", "multiprocessors, GPU {{gpu}}"),
            max_value=1,
        ),
        lines(
            Words("GPU memory", "Memory of the GPU in use, by whomever, of what it has.", "bytes"),
            Query("gapless_nvml_memory_used_bytes", "used, GPU {{gpu}}"),
            Query("gapless_nvml_memory_total_bytes", "total, GPU {{gpu}}"),
        ),
        lines(
            Words("Power", "What the GPU draws.", "watt"),
            Query("gapless_nvml_power_watts", "GPU {{gpu}}"),
        ),
        lines(
            Words("Temperature", "Of the GPU.", "celsius"),
            Query("gapless_nvml_temperature_celsius", "GPU {{gpu}}"),
        ),
    ]
