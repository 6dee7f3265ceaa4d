"""What is told to traces, and what is not: without a collector, and beyond what may be told a second."""

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.errors import ExitCode, TracingError
from daemon.submission import took_too_long
from daemon.tracing import NoTracing, SpanAllowance, open_tracing


def test_without_a_collector_nothing_is_wanted_and_nothing_is_loaded() -> None:
    """The packages for it need not be there, and cost no memory where they are."""
    program = (
        "import sys; from daemon import service; from daemon.tracing import open_tracing; open_tracing(None, 1.0); "
        "print([name for name in sys.modules if name.startswith('opentelemetry')])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
    trace = open_tracing(None, 1.0).file("p", "f.jsonl")
    with trace.stage("run"):
        assert not trace.wants(took_too_long(1))
    trace.end({}, None)
    NoTracing().close()


def test_a_missing_package_is_said_by_name_and_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """An edit of the YAML or an installation mends it."""
    monkeypatch.delitem(sys.modules, "daemon.otel", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry.context", None)
    with pytest.raises(TracingError, match=r"daemon\.tracing\.endpoint: .* pip install 'gapless\[otel\]'") as caught:
        open_tracing("http://127.0.0.1:4318", 1.0)
    assert caught.value.exit_code is ExitCode.FIX_INPUT


@given(st.floats(0, 50), st.lists(st.tuples(st.floats(0, 30), st.integers(1, 30)), max_size=20))
def test_no_more_spans_are_made_than_the_rate_allows(per_s: float, waits: list[tuple[float, int]]) -> None:
    """Over any time: the rate times that, and a burst of ten seconds' worth."""
    now_s = 0.0
    allowance = SpanAllowance(per_s, lambda: now_s)
    taken = 0
    for wait_s, asked in waits:
        now_s += wait_s
        taken += sum(allowance.take() for _ in range(asked))
        assert taken <= per_s * (10 + now_s) + 1e-6


def test_a_rate_that_is_kept_is_never_refused() -> None:
    """Ten a second, asked for ten times a second."""
    now_s = 0.0
    allowance = SpanAllowance(10, lambda: now_s)
    for _ in range(1000):
        now_s += 0.1
        assert allowance.take()
