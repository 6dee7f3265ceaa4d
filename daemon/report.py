"""What a person wants to know of one file afterwards: the content of `STEM.report.json`; `report_table` shows it."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from daemon.device_account import DeviceTotals
from daemon.durable import utf8_name
from daemon.error_groups import ErrorGroup, group_dict
from daemon.journal_records import Outcome
from daemon.journal_state import Tally
from daemon.json_text import json_document
from daemon.made_with import MadeWith
from pipelines.config import EngineConfig
from pipelines.core.request import IdleCause

SEED_RULE = "the request's own seed, else the first 63 bits of blake2b('FINGERPRINT/INDEX', person='gapless-seed')"
_SECONDS_PER_HOUR = 3600


@dataclass(frozen=True, slots=True)
class Provenance:
    """What the answers depend on."""

    model_hash: str  # of the model's name, revision and arithmetic, as the file was claimed for it
    config_hash: str  # of the settings that the file was run with
    fingerprint: str  # of the file's content; default seeds are made of it


@dataclass(frozen=True, slots=True)
class FileReport:
    """The numbers of one file; times are of this run of the daemon and those before it."""

    source_name: str
    pipeline: str
    model: str | None
    status: str  # of the Batch object
    num_requests: int | None  # None: it could not be read so far that they were counted
    tally: Tally
    queued_s: float  # from the claim until the first request was sent
    running_s: float  # from then until the last line, restarts of the daemon included
    num_resent: int = 0  # requests sent again after a process died
    num_blank_lines: int = 0
    models_asked: Mapping[str, int] = field(default_factory=dict)  # names in requests that the pipeline's model served
    device: DeviceTotals | None = None  # where the engine's time went while this file ran, other files' shares included
    provenance: Provenance | None = None
    errors: tuple[ErrorGroup, ...] = ()
    num_new_tokens: int = 0  # computed for this file while `device` counted
    price_per_gpu_hour: float | None = None
    made_with: Mapping[MadeWith, int] = field(default_factory=dict)  # answers by the model that they were made with
    failure: tuple[str, str] | None = None  # code and message: why it could not be run, or not to its end
    is_resumed: bool = False  # the daemon was restarted while it ran: `device` and cost are of the time since

    def as_dict(self) -> dict[str, Any]:
        """Return it with its keys always in the same order."""
        tally, provenance = self.tally, self.provenance or Provenance("", "", "")
        rate = round(tally.completion_tokens / self.running_s, 3) if self.running_s > 0 else None
        return {
            "file": utf8_name(self.source_name),
            "pipeline": self.pipeline,
            "model": self.model,
            "model_hash": provenance.model_hash or None,
            "config_hash": provenance.config_hash or None,
            "fingerprint": provenance.fingerprint or None,
            "made_with": [
                {"model": made.model, "model_hash": made.model_hash, "answers": number}
                for made, number in self.made_with.items()
            ],
            "seed_rule": SEED_RULE,
            "status": self.status,
            "failure": None if self.failure is None else dict(zip(("code", "message"), self.failure, strict=True)),
            "requests": {"total": self.num_requests}
            | {outcome.name.lower(): tally.count(outcome) for outcome in Outcome}
            | {"resent": self.num_resent},
            "errors": [group_dict(group) for group in self.errors],
            "finish_reasons": {"stop": tally.num_stop, "length": tally.num_length},
            "tokens": {
                "prompt": tally.prompt_tokens,
                "cached": tally.cached_tokens,
                "completion": tally.completion_tokens,
            },
            "seconds": {"queued": round(self.queued_s, 3), "running": round(self.running_s, 3)},
            "completion_tokens_per_s": rate,
            "is_resumed": self.is_resumed,
            "blank_lines": self.num_blank_lines,
            "models_asked": {name: self.models_asked[name] for name in sorted(self.models_asked)},
            "device_seconds": None if self.device is None else _device(self.device),
            "cost": None if self.device is None else self._cost(self.device),
        }

    def as_json(self) -> str:
        """Return it as people read it."""
        return json_document(self.as_dict()).decode()

    def _cost(self, device: DeviceTotals) -> dict[str, Any]:
        """Return this file's share of the device's time, by tokens: what ran beside it pays for its own."""
        share = self.num_new_tokens / max(device.num_tokens, self.num_new_tokens, 1)
        gpu_s, price = share * device.wall_s, self.price_per_gpu_hour
        return {
            "share_of_tokens": round(share, 4),
            "gpu_seconds": round(gpu_s, 3),
            "price_per_gpu_hour": price,
            "total": None if price is None else round(price * gpu_s / _SECONDS_PER_HOUR, 6),
        }


def config_hash(settings: Mapping[str, Any], engine: EngineConfig) -> str:
    """Return one short hash of everything the configuration says about how a file is run."""
    text = json.dumps({"pipeline": settings, "engine": asdict(engine)}, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _device(totals: DeviceTotals) -> dict[str, Any]:
    idle = {cause.value: round(totals.idle_s[cause], 3) for cause in IdleCause}
    return {"busy": round(totals.busy_s, 3), "unproven": round(totals.unproven_s, 3), "idle": idle}
