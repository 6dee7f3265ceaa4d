"""Kernels in the quick interpreter are what they are in Triton's own."""

import json
import subprocess
import sys

import pytest
from interpreted_kernels import outcomes
from kernel_support import ON_GPU

IN_TRITONS_OWN = """\
import json, sys
import quick_interpreter
quick_interpreter.make_quick = lambda: None
from interpreted_kernels import outcomes
json.dump(outcomes(), sys.stdout)
"""


@pytest.mark.skipif(ON_GPU, reason="with a GPU no kernel is interpreted")
def test_it_computes_and_refuses_what_tritons_own_does():
    """To the last bit; types that are made of remembered parts are the same types."""
    paths = f"import sys; sys.path[:0] = {sys.path!r}\n"
    done = subprocess.run([sys.executable, "-c", paths + IN_TRITONS_OWN], capture_output=True, check=False, timeout=100)
    assert done.returncode == 0, done.stderr.decode()
    expected = json.loads(done.stdout)
    assert json.loads(json.dumps(outcomes())) == expected
    assert "none" not in expected["refusals"]
