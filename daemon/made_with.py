"""Which model an answer was made with: what each line, and in sum the report, says of it."""

import hashlib
from dataclasses import dataclass

from pipelines.config import ModelConfig


@dataclass(frozen=True, slots=True)
class MadeWith:
    """A model as results name it."""

    model: str  # the name it truly is
    model_hash: str  # of what the configuration says of it

    @property
    def system_fingerprint(self) -> str:
        """OpenAI's word for what, beside the seed, decides an answer."""
        return f"fp_{self.model_hash}"


def hash_of_model(model: ModelConfig) -> str:
    """Return one short hash of a model's name, revision and arithmetic."""
    return hashlib.blake2b(f"{model.path}@{model.revision}/{model.dtype}".encode(), digest_size=8).hexdigest()
