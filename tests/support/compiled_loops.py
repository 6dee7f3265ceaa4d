"""Compiles kernels for a Hopper GPU on a machine without one, and prints what could be slow in each one's loop.

Run as a program: Triton's interpreter, which the tests' own process uses, cannot compile. Prints a JSON object: for each
kernel the most copies that may still be under way where its loop waits for one (0: it waits for each as soon as it is started),
and how many numbers a thread makes bfloat16 of float16 at a quarter of the speed of other ways.
"""

import json
import re
import sys

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from pipelines.kernels import decode_attention, experts, linear, prefill_attention

HOPPER = GPUTarget("cuda", 90, 32)
ALIGNED = (
    "query_stride",
    "output_stride",
    "tokens_stride",
    "hidden_stride",
    "num_rows",
)  # multiples of 16, as in real models
FLOATS = ("sums", "weights", "token_scales", "weight_scales", "left_squares", "scale_squares")
INTEGERS = ("block_tables", "items", "lanes", "counts", "joins", "arrivals", "order")
POINTERS = (
    "query", "keys", "values", "output", "key_scales", "value_scales", "tokens", "weight", "bias", "hidden", "norm_weight",
    "rows",
)  # fmt: skip
LLAMA = {
    "num_kv_heads": 8, "group": 4, "key_dim": 128, "key_block": 128, "value_dim": 128, "value_block": 128, "page_size": 64,
    "block_n": 64, "item_words": 8, "precision": "ieee", "is_scaled": False, "dependent": True,
}  # fmt: skip
LINEAR = {
    "size": 4096, "split_size": 2048, "splits": 2, "is_full": True, "block_m": 32, "block_n": 64, "tile_rows": 64, "block_k": 128,
    "is_gated": False, "adds": True, "leaves_norm": True, "has_bias": False, "is_float8": False, "scale_tiles": 0,
    "scale_block": 1, "scale_size": 1, "prefetched": 4, "ahead": 0, "dependent": True,
}  # fmt: skip
CASES = {
    "decode": (
        decode_attention._decode, LLAMA | {"group_rows": 16, "lane_words": 2}, {"num_warps": 4, "num_stages": 3},
    ),
    "join": (
        decode_attention._join,
        {name: LLAMA[name] for name in ("num_kv_heads", "group", "value_dim", "value_block", "dependent")}
        | {"group_block": 4, "at_once": 8, "join_words": 4},
        {"num_warps": 4},
    ),
    "prefill": (
        prefill_attention._prefill, LLAMA | {"window": 0, "block_m": 128}, {"num_warps": 8, "num_stages": 3},
    ),
    "decode of float8": (
        decode_attention._decode,
        LLAMA | {"group_rows": 16, "lane_words": 2, "is_scaled": True},
        {"num_warps": 4, "num_stages": 3},
    ),
    "prefill of float8": (
        prefill_attention._prefill,
        LLAMA | {"window": 0, "block_m": 128, "is_scaled": True},
        {"num_warps": 8, "num_stages": 3},
    ),
    "linear": (linear._linear, LINEAR, {"num_warps": 4, "num_stages": 6}),
    "linear of a tile that is not full": (
        linear._linear, LINEAR | {"is_full": False}, {"num_warps": 4, "num_stages": 6},
    ),
    "gate of float8": (
        linear._linear,
        {
            "size": 4096, "split_size": 4096, "splits": 1, "is_full": True, "block_m": 32, "block_n": 64, "tile_rows": 56,
            "block_k": 64,
            "is_gated": True, "adds": False, "leaves_norm": False, "has_bias": False, "is_float8": True, "scale_tiles": 64,
            "scale_block": 64, "scale_size": 4096, "prefetched": 4, "ahead": 128, "dependent": True,
        },
        {"num_warps": 4, "num_stages": 6},
    ),
    "experts": (
        experts._experts,
        {
            "num_experts": 128, "expert_block": 128, "pairs_a_row": 8, "rows_out": 768, "size": 2048, "block_m": 16,
            "block_n": 64, "block_k": 64, "is_gated": True, "dependent": True,
        },
        {"num_warps": 4, "num_stages": 4},
    ),
}  # fmt: skip


def kind_of(name, *, is_scaled):
    """The type of an argument, in Triton's words; keys and values that have scales are float8."""
    if name in FLOATS or (is_scaled and name in {"key_scales", "value_scales"}):
        return "*fp32"
    if is_scaled and name in {"keys", "values", "tokens", "weight"}:
        return "*fp8e4nv"
    if name in INTEGERS:
        return "*i32"
    if name in POINTERS:
        return "*bf16"
    return "fp32" if name in {"scale_log2", "epsilon"} else "i32"


def findings(kernel, constants, options):
    names = kernel.arg_names
    if forgotten := [each.name for each in kernel.params if each.is_constexpr and each.name not in constants]:
        raise SystemExit(f"{kernel.__name__} is compiled without its constants {forgotten}")
    is_scaled = constants.get("is_scaled", False) or constants.get("is_float8", False)
    signature = {name: "constexpr" if name in constants else kind_of(name, is_scaled=is_scaled) for name in names}
    hints = {
        (index,): [["tt.divisibility", 16]]
        for index, name in enumerate(names)
        if signature[name].startswith("*") or name in ALIGNED
    }
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=hints)
    text = triton.compile(source, target=HOPPER, options=options | {"launch_pdl": True}).asm
    loop = text["ttgir"][text["ttgir"].rindex("scf.for") :]
    return {
        "under_way": max(map(int, re.findall(r"async_wait .*num = (\d+)", loop)), default=0),
        "slow_conversions": len(re.findall(r"cvt\.(?:rn\.)?bf16\.f16", text["ptx"])),
    }


if __name__ == "__main__":
    chosen = sys.argv[1:] or list(CASES)
    json.dump({name: findings(*CASES[name]) for name in chosen}, sys.stdout)
