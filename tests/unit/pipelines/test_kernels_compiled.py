"""What the compiler makes of the kernels' loops for a GPU: it may quietly give up starting loads ahead, and then all is slow."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def test_each_loop_has_loads_under_way_and_converts_the_quick_way(tmp_path):
    """The decode loop lost the first once by carrying one more number around: the results were right."""
    if importlib.util.find_spec("triton") is None:
        pytest.skip("Triton is missing, so NO KERNEL IS COMPILED here: install the test extras")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"PYTHONPATH": str(ROOT), "TRITON_CACHE_DIR": str(tmp_path)}
    program = ROOT / "tests/support/compiled_loops.py"
    done = subprocess.run([sys.executable, program], env=environment, stdout=subprocess.PIPE, check=True)
    found = json.loads(done.stdout)
    assert set(found) == {
        "decode",
        "join",
        "prefill",
        "decode of float8",
        "prefill of float8",
        "linear",
        "linear of a tile that is not full",
        "gate of float8",
        "experts",
    }
    under_way = {name: each["under_way"] for name, each in found.items()}
    assert under_way["decode"] >= 3  # a query, keys and values of a turn
    assert all(most > 0 for most in under_way.values()), under_way
    assert all(each["slow_conversions"] == 0 for each in found.values()), found
