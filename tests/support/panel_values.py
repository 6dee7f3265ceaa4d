"""What each query of each panel has to show, by plain arithmetic on what was scraped.

`{dashboard: {panel: [a function of (window, hour) for each query]}}`; a `Window` covers one rate interval, `hour` all that was
scraped. What they return is compared with what Prometheus makes of the panel's PromQL.
"""

from prometheus_process import one, the

FIVE_MINUTES_S = 300


def _total(name):
    return lambda window, _: window.last(name)


def _rate(name, by=()):
    return lambda window, _: window.rate(name, by)


def _increase(name, by=()):
    return lambda window, _: window.increase(name, by)


def _quantiles(name):
    return [lambda window, _: window.quantile(0.5, name), lambda window, _: window.quantile(0.99, name)]


def _kv_share(window, _):
    return one(the(window.last("gapless_kv_blocks_used")) / the(window.last("gapless_kv_blocks_capacity")))


def _occupancy(window, _):
    sequences = the(window.rate("gapless_batch_sequences_sum")) / the(window.rate("gapless_batch_sequences_count"))
    return one(sequences / the(window.last("gapless_seats_capacity")))


def _padding(window, _):
    padding = the(window.rate("gapless_padding_tokens_total"))
    return one(padding / (padding + the(window.rate("gapless_batch_tokens_sum"))))


def _share(part, whole):
    return lambda window, _: one(the(window.rate(part)) / the(window.rate(whole)))


def _busy_files(window, _):
    states = window.last("gapless_files", ("state",))
    return one(sum(value for key, value in states.items() if dict(key)["state"] != "waiting"))


def _ended_a_second(hour):
    """In the last five minutes, of which only the seconds since the start hold anything."""
    return sum(s.points[-1][1] - s.points[0][1] for s in hour.select("gapless_requests_total")) / FIVE_MINUTES_S


def _time_left(window, hour):
    return one(the(window.last("gapless_requests_pending")) / _ended_a_second(hour))


def _errors(_, hour):
    ended = hour.rate("gapless_requests_total", ("outcome",))
    good = sum(value for key, value in ended.items() if dict(key)["outcome"] == "completed")
    return one(1 - good / sum(ended.values()))


GPU = {
    "Where the device's time goes": [
        _rate("gapless_gpu_busy_seconds_total"),
        _rate("gapless_gpu_unproven_seconds_total"),
        _rate("gapless_gpu_idle_seconds_total", ("cause",)),
    ],
    "Engines": [_total("gapless_engine_ready")],
    "Busy, last minute": [_total("gapless_gpu_busy_ratio")],
    "Generated": [_rate("gapless_generation_tokens_total")],
    "Running": [_total("gapless_requests_running")],
    "Waiting": [_total("gapless_requests_waiting")],
    "KV cache": [_kv_share],
    "Step time": [_increase("gapless_step_seconds_bucket", ("le",))],
    "Between the steps": [*_quantiles("gapless_step_gap_seconds"), *_quantiles("gapless_step_host_seconds")],
    "Roofline ratio": [_share("gapless_decode_floor_seconds_total", "gapless_decode_seconds_total")],
    "Tokens": [_rate("gapless_generation_tokens_total"), _rate("gapless_prompt_tokens_total")],
    "Occupancy and padding": [_occupancy, _padding],
    "Sequences": [
        _total("gapless_requests_running"), _total("gapless_requests_waiting"), _total("gapless_seats_capacity"),
    ],
    "KV cache blocks": [_total("gapless_kv_blocks_used"), _total("gapless_kv_blocks_capacity")],
    "Prefix cache": [_share("gapless_prefix_cache_hit_tokens_total", "gapless_prefix_cache_query_tokens_total")],
    "Preemptions and restarts": [
        _increase("gapless_preemptions_total"), _increase("gapless_engine_restarts_total"),
        _increase("gapless_steps_taken_back_total"),
    ],
    "Waiting for the first token": [
        *_quantiles("gapless_queue_seconds"), *_quantiles("gapless_time_to_first_token_seconds"),
    ],
    "Time a token": _quantiles("gapless_time_per_output_token_seconds"),
    "Memory bandwidth and multiprocessors": [
        lambda window, _: window.last("gapless_nvml_dram_bandwidth_ratio", ("gpu",)),
        lambda window, _: window.last("gapless_nvml_sm_ratio", ("gpu",)),
    ],
    "GPU memory": [
        lambda window, _: window.last("gapless_nvml_memory_used_bytes", ("gpu",)),
        lambda window, _: window.last("gapless_nvml_memory_total_bytes", ("gpu",)),
    ],
    "Power": [lambda window, _: window.last("gapless_nvml_power_watts", ("gpu",))],
    "Temperature": [lambda window, _: window.last("gapless_nvml_temperature_celsius", ("gpu",))],
}  # fmt: skip

FILES = {
    "In the inbox": [lambda window, _: window.last("gapless_files", state="waiting")],
    "Being run": [_busy_files],
    "Requests to go": [_total("gapless_requests_pending")],
    "Time left": [_time_left],
    "Errors": [_errors],
    "Disk": [_total("gapless_disk_free_bytes")],
    "Requests": [_rate("gapless_requests_total", ("outcome",))],
    "Requests to go, by pipeline": [lambda window, _: window.last("gapless_requests_pending", ("pipeline",))],
    "Files": [lambda window, _: window.last("gapless_files", ("state",))],
    "Files ended": [_increase("gapless_files_ended_total", ("status",))],
    "Oldest files": [
        lambda window, _: window.last("gapless_oldest_waiting_file_seconds", ("pipeline",)),
        lambda window, _: window.last("gapless_oldest_running_file_seconds", ("pipeline",)),
    ],
    "Time of a file": [
        lambda _, hour: hour.quantile(0.5, "gapless_file_seconds"),
        lambda _, hour: hour.quantile(0.9, "gapless_file_seconds"),
    ],
    "Finish reasons": [_rate("gapless_choices_total", ("finish_reason",))],
    "Time of a request": _quantiles("gapless_request_seconds"),
    "Journal syncs": _quantiles("gapless_journal_sync_seconds"),
    "Disk, over time": [_total("gapless_disk_free_bytes")],
    "Paused": [lambda window, _: window.last("gapless_pipeline_paused", ("pipeline", "cause"))],
    "Changes of the configuration": [_increase("gapless_config_reloads_total", ("outcome",))],
}
BOARDS = {"gpu.json": GPU, "files.json": FILES}
