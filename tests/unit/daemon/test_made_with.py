"""Whatever changes the arithmetic of answers gives the model another hash."""

from dataclasses import replace

from daemon.made_with import hash_of_model
from pipelines.config import CacheDtype, Dtype, EngineConfig, KvCacheConfig, ModelConfig, Quantization, Schedule


def test_each_model_and_each_arithmetic_has_a_hash_of_its_own():
    plain = EngineConfig("e", ModelConfig("x/y"))
    others = [
        replace(plain, model=replace(plain.model, path="x/z")),
        replace(plain, model=replace(plain.model, revision="v2")),
        replace(plain, model=replace(plain.model, dtype=Dtype.FLOAT16)),
        replace(plain, model=replace(plain.model, quantization=Quantization.FP8)),
        replace(plain, kv_cache=KvCacheConfig(dtype=CacheDtype.FP8)),
    ]
    assert len({hash_of_model(config) for config in (plain, *others)}) == 6
    assert hash_of_model(replace(plain, name="f", schedule=Schedule.SYNC)) == hash_of_model(plain)
