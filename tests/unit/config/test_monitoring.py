"""What configs/monitoring asks for is what a process tells, and what docs/monitoring.md describes."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import yaml
from prometheus_client.metrics_core import Metric

from trilateral.common.base.roles import Role
from trilateral.common.compute.engine import Cluster
from trilateral.common.observe.metrics import Metrics

ROOT = Path(__file__).parents[3]
MONITORING = ROOT / "configs/monitoring"
DASHBOARD = MONITORING / "grafana/dashboards/trilateral.json"
SUFFIXES = {"counter": ["_total"], "gauge": [""], "histogram": ["_bucket", "_count", "_sum"]}
OWN_OF_PROMETHEUS = {"up"}
KEYWORDS = {"and", "or", "on", "by", "group_left"}


def families() -> list[Metric]:
    metrics = Metrics(Role.HOST, ROOT)
    metrics.cluster = Mock(spec=Cluster, n_workers=2, n_slots=2, n_tasks=0, n_losses=0)
    return list(metrics.registry.collect())


@pytest.fixture(scope="module")
def told() -> set[str]:
    """Names of the series that a process has."""
    return {family.name + suffix for family in families() for suffix in SUFFIXES[family.type]}


def panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(DASHBOARD.read_text())["panels"]
    return found


def dashboard_expressions() -> Iterator[str]:
    for panel in panels():
        for target in panel.get("targets", []):
            yield target["expr"]


def alerts() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load((MONITORING / "alerts.yml").read_text())["groups"]
    rules: list[dict[str, Any]] = group["rules"]
    return rules


def names_in(expression: str) -> set[str]:
    """Metrics that an expression asks for: whatever stands before a selector or a range."""
    bare = re.sub(r'"[^"]*"', "", expression)
    bare = re.sub(r"\{[^}]*\}", "", bare)
    bare = re.sub(r"\b(by|on|without|ignoring) *\([^)]*\)", "", bare)
    return {name for name in re.findall(r"[a-z_]{2,}(?![a-z_]* *\()", bare) if name not in KEYWORDS}


def test_the_names_in_an_expression_are_found() -> None:
    expression = 'sum by (instance, le) (rate(a_bucket{x="y_z"}[5m])) > 1 and on (instance) b_total - time() == 2^30'
    assert names_in(expression) == {"a_bucket", "b_total"}


@pytest.mark.parametrize("expression", list(dashboard_expressions()))
def test_the_dashboard_shows_what_there_is(expression: str, told: set[str]) -> None:
    plain = expression.replace("$__rate_interval", "1m").replace("$instance", "host")
    assert names_in(plain)
    assert names_in(plain) <= told


@pytest.mark.parametrize("alert", alerts(), ids=lambda alert: alert["alert"])
def test_alerts_ask_for_what_there_is_and_are_tried_out(alert: dict[str, Any], told: set[str]) -> None:
    assert names_in(alert["expr"])
    assert names_in(alert["expr"]) <= told | OWN_OF_PROMETHEUS
    assert set(alert["annotations"]) == {"summary", "description"}
    assert f"alertname: {alert['alert']}\n" in (ROOT / "tests/monitoring/alerts.yml").read_text()


def test_panels_do_not_overlap_and_say_what_they_show() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in panels():
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken
        assert max(x for x, _ in cells) < 24
        taken |= cells
        assert panel["type"] == "row" or panel["description"]
    assert len({panel["id"] for panel in panels()}) == len(panels())


def test_the_dashboard_takes_its_numbers_from_the_source_that_is_provisioned() -> None:
    (source,) = yaml.safe_load((MONITORING / "grafana/provisioning/datasources/prometheus.yml").read_text())[
        "datasources"
    ]
    uids = re.findall(r'"uid": "([^"]*)"', DASHBOARD.read_text())
    assert set(uids) == {source["uid"], json.loads(DASHBOARD.read_text())["uid"]}


def test_each_process_is_scraped_under_its_role() -> None:
    config = yaml.safe_load((MONITORING / "prometheus.yml").read_text())
    (job,) = config["scrape_configs"]
    assert job["job_name"] == "trilateral"  # which the alert of a process that is down asks for
    assert {entry["labels"]["instance"]: entry["targets"] for entry in job["static_configs"]} == {
        role.value: [f"{role}:9464"] for role in Role
    }
    assert config["rule_files"] == ["alerts.yml"]


def described(heading: str) -> set[str]:
    """What stands in code in the first cells of the tables below a heading of docs/monitoring.md."""
    text = (ROOT / "docs/monitoring.md").read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    cells = [line.split("|")[1] for line in text.split("\n") if line.startswith("| `")]
    return {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}


def test_every_metric_is_described() -> None:
    assert {family.name + SUFFIXES[family.type][0].removesuffix("_bucket") for family in families()} == described(
        "Metrics"
    )


def test_every_alert_is_described() -> None:
    assert {alert["alert"] for alert in alerts()} == described("Prometheus and Grafana")
