"""The page on metrics, the dashboard and the alert rules name the metrics that exist, and the page names all of them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "metrics.md"
DASHBOARD = ROOT / "docs" / "monitoring" / "grafana.json"
ALERTS = ROOT / "docs" / "monitoring" / "alerts.yml"
STORES = ROOT / "src" / "conquiet" / "cli" / "verbs" / "metrics.py"
ROW = re.compile(r"^\| `(conquiet_\w+)` \| ([\w, ]*?) ?\| (.*) \|$", re.MULTILINE)

REGISTER = """
import importlib, json, pkgutil
import conquiet.observe
from prometheus_client import REGISTRY

for module in pkgutil.iter_modules(conquiet.observe.__path__):
    found = vars(importlib.import_module(f"conquiet.observe.{module.name}"))
    for register in (found.get("_families"), found.get("_family")):
        if register is not None:
            register()
labels = {
    name: collector._labelnames
    for collector, names in REGISTRY._collector_to_names.items()
    if hasattr(collector, "_labelnames")
    for name in names
}
print(json.dumps([
    (family.name, family.type, labels.get(family.name)) for family in REGISTRY.collect() if family.name.startswith("conquiet_")
]))
"""


@pytest.fixture(scope="module")
def registered() -> dict[str, tuple[str, list[str] | None]]:
    """The metrics that the code registers: their types and labels, by the name that is documented."""
    done = subprocess.run([sys.executable, "-c", REGISTER], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    found = {}
    for name, kind, labels in json.loads(done.stdout):
        found[f"{name}_total" if kind == "counter" else name] = (kind, labels)
    return found


def of_stores() -> set[str]:
    return set(re.findall(r'"(conquiet_\w+)"', STORES.read_text()))


def test_the_table_has_every_metric_with_its_labels(
    registered: dict[str, tuple[str, list[str] | None]],
) -> None:
    rows = {name: (labels, text) for name, labels, text in ROW.findall(PAGE.read_text())}
    assert sorted(rows) == sorted({*registered, *of_stores()})
    for name, (kind, labels) in registered.items():
        if labels is not None:
            assert rows[name][0] == ", ".join(labels), name
        assert (kind == "counter") == name.endswith("_total")
        assert (kind in ("gauge", "histogram")) == rows[name][1].startswith(kind) or kind == "counter", name


@pytest.mark.parametrize("file", [DASHBOARD, ALERTS], ids=lambda path: path.name)
def test_only_metrics_that_exist_are_named(
    file: Path, registered: dict[str, tuple[str, list[str] | None]]
) -> None:
    samples = set(registered) | of_stores()
    for name, (kind, _) in registered.items():
        if kind == "histogram":
            samples |= {f"{name}_{part}" for part in ("bucket", "sum", "count")}
    named = set(re.findall(r"conquiet_\w+", file.read_text()))
    assert len(named) > 8
    assert named - samples == set()


def test_the_dashboard_shows_every_metric_of_jobs(
    registered: dict[str, tuple[str, list[str] | None]],
) -> None:
    dashboard = json.loads(DASHBOARD.read_text())
    asked = " ".join(target["expr"] for panel in dashboard["panels"] for target in panel["targets"])
    missing = [name for name in registered if name.startswith("conquiet_jobs_") and name not in asked]
    assert missing == []
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])


def test_every_alert_says_what_to_do() -> None:
    rules = ALERTS.read_text().split("      - alert: ")[1:]
    assert len(rules) > 5
    for rule in rules:
        for part in ("expr: ", "labels: {severity: ", "summary: ", "description: "):
            assert f"{part}" in rule, rule
        assert rule.count("(") == rule.count(")"), rule
