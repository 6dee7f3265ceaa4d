"""The committed dashboards are what the code makes, fit Grafana's grid, and ask for metrics and labels that there are."""

import json
import re
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml

from daemon.file_metrics import FINAL
from daemon.file_rules import MAX_OPEN_FILES
from daemon.gpu_reader import GpuReading
from daemon.journal_records import Outcome
from daemon.metrics import Metrics
from daemon.status import FileState
from grafana.build import FOLDER, rendered
from grafana.files_dashboard import OUTCOMES, STATES, STATUSES
from grafana.gpu_dashboard import CAUSES
from pipelines.config import Schedule
from pipelines.core.request import IdleCause

ROOT = Path(__file__).parents[3]
BOARDS = sorted(path.name for path in FOLDER.glob("*.json"))
GRID = 24
SELECTOR = re.compile(r"(gapless_\w+)(?:\{([^}]*)\})?")


def board(name: str) -> dict[str, Any]:
    """A committed dashboard."""
    found: dict[str, Any] = json.loads((FOLDER / name).read_text())
    return found


def expressions(found: dict[str, Any]) -> list[str]:
    """All PromQL of a dashboard."""
    targets = [target["expr"] for panel in found["panels"] for target in panel["targets"]]
    return targets + [mark["expr"] for mark in found["annotations"]["list"]]


def exported_labels() -> dict[str, set[str]]:
    """Sample name -> labels of all that a daemon exports."""
    metrics = Metrics()
    metrics.add_engine("main")
    metrics.set_schedule("main", Schedule.ASYNC)
    metrics.add_pipeline("chat")
    metrics.observe_gpu(GpuReading(0, 1, 2, 3.0, 4, 0.5, 0.6))
    return {sample.name: set(sample.labels) for family in metrics.registry.collect() for sample in family.samples}


def test_the_committed_dashboards_are_what_the_code_makes() -> None:
    """`python -m grafana.build` renews them; nobody edits them by hand."""
    assert sorted(rendered()) == BOARDS
    for name, text in rendered().items():
        assert (FOLDER / name).read_text() == text, f"{name}: run python -m grafana.build"


@pytest.mark.parametrize("name", BOARDS)
def test_panels_have_ids_of_their_own_and_do_not_overlap(name: str) -> None:
    """They lie within the grid's width, one beside or below the other, and fill each row."""
    panels = board(name)["panels"]
    assert [panel["id"] for panel in panels] == list(range(1, len(panels) + 1))
    places = [panel["gridPos"] for panel in panels]
    assert all(place["w"] > 0 and place["h"] > 0 and place["x"] + place["w"] <= GRID for place in places)
    for one, other in combinations(places, 2):
        apart = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        assert apart or one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
    for top in {place["y"] for place in places}:
        assert sum(place["w"] for place in places if place["y"] == top) == GRID


@pytest.mark.parametrize("name", BOARDS)
def test_every_panel_says_what_it_shows_in_which_unit_from_the_chosen_source(name: str) -> None:
    """A title alone explains nothing; a number without a unit is none."""
    found = board(name)
    for panel in found["panels"]:
        assert panel["title"]
        assert len(panel["description"]) > 5, panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert {target["datasource"]["uid"] for target in panel["targets"]} == {"${datasource}"}
        assert panel["datasource"]["uid"] == "${datasource}"
        ids = [target["refId"] for target in panel["targets"]]
        assert len(ids) == len(set(ids)) > 0
    assert found["uid"]
    assert found["templating"]["list"][0]["name"] == "datasource"


@pytest.mark.parametrize("name", BOARDS)
def test_the_first_panels_fit_a_laptops_screen(name: str) -> None:
    """What matters most is seen without scrolling: at most 13 units of 30 pixels, and not too much below."""
    panels = board(name)["panels"]
    assert sum(panel["gridPos"]["y"] + panel["gridPos"]["h"] <= 13 for panel in panels) >= 7
    assert len(panels) <= 25


@pytest.mark.parametrize("name", BOARDS)
def test_queries_ask_for_metrics_and_labels_that_there_are(name: str) -> None:
    """A metric that was renamed would leave a panel empty without a word."""
    labels = exported_labels()
    found = board(name)
    variables = {variable["name"] for variable in found["templating"]["list"]}
    for expr in expressions(found):
        used = SELECTOR.findall(expr)
        assert used, expr
        for metric, selector in used:
            assert metric in labels, f"{metric} in {expr}"
            named = set(re.findall(r"(\w+)\s*(?:=~|!=|=|!~)", selector))
            assert named <= labels[metric], f"{named - labels[metric]} of {metric}"
        grouped = {label.strip() for labels_ in re.findall(r"by \(([^)]*)\)", expr) for label in labels_.split(",")}
        assert grouped <= set().union(*(labels[metric] for metric, _ in used))
        assert set(re.findall(r"\$(\w+)", expr)) <= variables | {"__rate_interval"}


def test_every_value_of_a_label_has_its_colour() -> None:
    """A new cause, outcome or state must not appear in a colour that another one has by chance."""
    assert set(CAUSES) == {"busy", "unproven"} | {f"idle: {cause}" for cause in IdleCause}
    assert set(OUTCOMES) == {outcome.name.lower() for outcome in Outcome}
    assert set(STATUSES) == set(FINAL)
    assert set(STATES) == set(FileState)
    for colors in (CAUSES, OUTCOMES, STATUSES, STATES):
        assert len(set(colors.values())) == len(colors)


def test_rules_ask_for_metrics_that_there_are() -> None:
    """As for the panels."""
    exported = exported_labels()
    for name in ("recording.yml", "alerts.yml"):
        rules = yaml.safe_load((ROOT / "grafana" / "rules" / name).read_text())["groups"][0]["rules"]
        for rule in rules:
            for metric in re.findall(r"\bgapless_\w+", rule["expr"]):
                assert metric in exported, rule
            if "alert" in rule:
                assert rule["labels"]["severity"] in {"warning", "critical"}
                assert set(rule["annotations"]) == {"summary", "description"}


def test_the_rule_about_waiting_files_knows_how_many_are_run_at_once() -> None:
    """What waits behind a full house is a backlog."""
    rules = yaml.safe_load((ROOT / "grafana" / "rules" / "alerts.yml").read_text())["groups"][0]["rules"]
    (rule,) = (rule for rule in rules if rule["alert"] == "GaplessFileWaits")
    assert f'(gapless_files{{state!="waiting"}}) < {MAX_OPEN_FILES}' in rule["expr"]


def test_every_alert_has_a_test_that_it_fires_and_one_that_it_does_not() -> None:
    """An alert that nobody has seen fire is a hope."""
    folder = ROOT / "grafana" / "rules"
    alerts = {rule["alert"] for rule in yaml.safe_load((folder / "alerts.yml").read_text())["groups"][0]["rules"]}
    tests = [
        case for test in yaml.safe_load((folder / "alerts_test.yml").read_text())["tests"]
        for case in test["alert_rule_test"]
    ]  # fmt: skip
    assert {case["alertname"] for case in tests if case.get("exp_alerts")} == alerts
    assert {case["alertname"] for case in tests if not case.get("exp_alerts")} == alerts


@pytest.mark.parametrize("name", ["docker-compose.yml", "docker-compose.gpu.yml"])
def test_what_the_containers_mount_is_there_and_nothing_is_served_to_others(name: str) -> None:
    """Paths exist, images have versions, and no port is published: everything listens on this machine alone."""
    services = yaml.safe_load((ROOT / name).read_text())["services"]
    for service in services.values():
        assert "ports" not in service
        assert ":" in service.get("image", "built:here")
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            if source.startswith("./grafana"):
                assert (ROOT / source).exists(), volume
    if name == "docker-compose.yml":
        assert "--web.listen-address=127.0.0.1:9090" in services["prometheus"]["command"]
        assert services["grafana"]["environment"]["GF_SERVER_HTTP_ADDR"] == "127.0.0.1"
        mounted = {volume.split(":")[1] for volume in services["grafana"]["volumes"]}
        provider = yaml.safe_load((ROOT / "grafana/provisioning/dashboards/gapless.yml").read_text())["providers"][0]
        assert provider["options"]["path"] in mounted
        assert (
            services["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
            == "/etc/grafana/dashboards/gpu.json"
        )


def test_the_image_copies_what_exists() -> None:
    """And the files that are kept out of the build are not among it."""
    sources = [
        source
        for line in (ROOT / "Dockerfile").read_text().splitlines()
        if line.startswith("COPY ")
        for source in line.split()[1:-1]
    ]
    kept = {
        line.removeprefix("!") for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")
    }
    assert sources
    assert all((ROOT / source).exists() for source in sources)
    assert set(sources) == kept
