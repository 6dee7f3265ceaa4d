"""A real Prometheus in a folder of its own, scraping one daemon."""

import json
import math
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass
from pathlib import Path

import yaml
from programs import free_port
from waiting import wait_until

SCRAPE_S = 0.5
DEADLINE_S = 60.0
RULES = Path(__file__).parents[2] / "grafana" / "rules"


class Prometheus:
    """Started on a free port; its own rules are the project's."""

    def __init__(self, program, folder, target):
        self.folder = Path(folder)
        shutil.copytree(RULES, self.folder / "rules")
        config = {
            "global": {"scrape_interval": f"{int(SCRAPE_S * 1000)}ms", "evaluation_interval": "1s"},
            "rule_files": ["rules/recording.yml", "rules/alerts.yml"],
            "scrape_configs": [{"job_name": "gapless", "static_configs": [{"targets": [target]}]}],
        }
        self.config = self.folder / "prometheus.yml"
        self.config.write_text(yaml.safe_dump(config))
        self.port = free_port()
        self.log = self.folder / "log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [
                    program, f"--config.file={self.config}", f"--storage.tsdb.path={self.folder / 'data'}",
                    f"--web.listen-address=127.0.0.1:{self.port}",
                ],
                stdout=log, stderr=log,
            )  # fmt: skip

    def ask(self, path, **parameters):
        """Ask its API; return what it calls data."""
        url = f"http://127.0.0.1:{self.port}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=20) as response:
            return json.load(response)["data"]

    def query(self, expr, at):
        """Evaluate an expression at a Unix time; return its vector as {labels: value}, without those of the scrape."""
        found = self.ask("query", query=expr, time=f"{at:.3f}")
        if found["resultType"] == "scalar":
            return {frozenset(): float(found["result"][1])}
        return {_labels(entry["metric"]): float(entry["value"][1]) for entry in found["result"]}

    def until(self, condition, what):
        """Wait until a condition holds; return what it gives."""

        def found():
            assert self.process.poll() is None, f"Prometheus ended:\n{self.log.read_text()}"
            return condition()

        not_yet = urllib.error.URLError, ConnectionError
        return wait_until(found, what, deadline_s=DEADLINE_S, log=self.log, every_s=0.05, not_yet=not_yet)

    def close(self):
        self.process.kill()
        self.process.wait()


def _labels(metric):
    return frozenset((name, value) for name, value in metric.items() if name not in {"__name__", "job", "instance"})


@dataclass(frozen=True)
class Series:
    """One series within a window."""

    name: str
    labels: dict[str, str]
    points: list[tuple[float, float]]


class Window:
    """All that was scraped in some seconds before an instant, and plain arithmetic on it: nothing of PromQL."""

    def __init__(self, prometheus, at, seconds):
        self.seconds = seconds
        self.rank_factor = 1.0  # of the share that a quantile is asked for
        found = prometheus.ask("query", query=f'{{job="gapless"}}[{seconds}s]', time=f"{at:.3f}")
        self.series = [
            Series(
                entry["metric"]["__name__"],
                dict(_labels(entry["metric"])),
                [(float(when), float(value)) for when, value in entry["values"]],
            )
            for entry in found["result"]
        ]

    def select(self, name, **match):
        """Series of a name whose labels have these values."""
        found = [s for s in self.series if s.name == name and all(s.labels.get(k) == v for k, v in match.items())]
        assert found, f"{name} {match} was never scraped"
        return found

    def last(self, name, by=(), **match):
        """Newest values, added up by labels."""
        return _grouped(((s.labels, s.points[-1][1]) for s in self.select(name, **match)), by)

    def rate(self, name, by=(), **match):
        """Increase a second between the first and the last value, added up by labels."""
        return _grouped(((s.labels, _rate(s.points)) for s in self.select(name, **match)), by)

    def increase(self, name, by=(), **match):
        """Increase over the window, at that rate."""
        return {key: value * self.seconds for key, value in self.rate(name, by, **match).items()}

    def quantile(self, share, name, **match):
        """The value below which a share of a histogram's new values lies, spread evenly within their bucket."""
        counts = sorted(
            (float(dict(key)["le"]), value) for key, value in self.rate(f"{name}_bucket", ("le",), **match).items()
        )
        wanted, low, below = min(1.0, share * self.rank_factor) * counts[-1][1], 0.0, 0.0
        if not counts[-1][1]:
            return {frozenset(): math.nan}
        for bound, count in counts:
            if count >= wanted:
                value = low if math.isinf(bound) else low + (bound - low) * (wanted - below) / (count - below)
                return {frozenset(): value}
            low, below = bound, count
        raise AssertionError("the last bucket holds everything")


def one(value):
    """A result without labels."""
    return {frozenset(): value}


def the(result):
    """The value of a result without labels."""
    (value,) = result.values()
    return value


def _rate(points):
    (first_s, first), (last_s, last) = points[0], points[-1]
    return (last - first) / (last_s - first_s) if last_s > first_s else 0.0


def _grouped(values, by):
    found = {}
    for labels, value in values:
        key = frozenset((name, labels[name]) for name in by)
        found[key] = found.get(key, 0.0) + value
    return found
