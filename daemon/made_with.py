"""Which model an answer was made with: what each line, and in sum the report, says of it."""

import hashlib
from dataclasses import dataclass

from pipelines.config import CacheDtype, EngineConfig, Quantization


@dataclass(frozen=True, slots=True)
class MadeWith:
    """A model as results name it."""

    model: str  # the name it truly is
    model_hash: str  # of what the configuration says of it

    @property
    def system_fingerprint(self) -> str:
        """OpenAI's word for what, beside the seed, decides an answer."""
        return f"fp_{self.model_hash}"


def hash_of_model(engine: EngineConfig) -> str:
    """Return one short hash of a model's name, revision and arithmetic, be it of weights or of what is kept of a context."""
    model = engine.model
    text = f"{model.path}@{model.revision}/{model.dtype}"
    if model.quantization is not Quantization.NONE:
        text += f"/{model.quantization}"
    if engine.kv_cache.dtype is not CacheDtype.AUTO:
        text += f"/cache {engine.kv_cache.dtype}"
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
