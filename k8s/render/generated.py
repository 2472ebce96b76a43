"""The content of every generated file under k8s/, and of the router image's pins. Writes it, or compares it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import yaml

from cluster.alerts.rules_file import rules_file
from k8s.render import dashboards
from k8s.render.binaries import run
from k8s.render.overlays import OVERLAYS, overlay_files
from k8s.render.pins import replica_pins, router_pins
from k8s.render.values_schema import values_schema

ROOT = Path(__file__).resolve().parents[2] / "k8s"
CHART = ROOT / "chart"
RELEASE = "penstock"
BASE = ROOT / "kustomize" / "base" / "penstock.yaml"
OVERLAY = ROOT / "kustomize" / "overlays"
ALERTS = CHART / "alerts" / "penstock.yaml"
ALERTS_TEXT = rules_file("Written by `make k8s-render` from cluster/alerts; change those.")
PINS = ROOT.parent / "requirements"
UNDER = {"prod": [CHART / "values-production.yaml"]}
"""Values files below an overlay's own."""


def template(overlay: str = "") -> str:
    """Render the chart's defaults, or an overlay's values, without the test pod, which only Helm can use."""
    files = [*UNDER.get(overlay, []), OVERLAY / overlay / "values.yaml"] if overlay else []
    values = [f"--values={file}" for file in files]
    return run("helm", "template", RELEASE, str(CHART), "--namespace", RELEASE, "--no-hooks", *values)


def chart_files() -> dict[Path, str]:
    """Return the generated files of the chart, with their content. Helm reads them, so they are written first."""
    schema = values_schema((CHART / "values.yaml").read_text(encoding="utf-8"))
    files = {CHART / "values.schema.json": _json(schema), ALERTS: ALERTS_TEXT}
    for name, board in dashboards.dashboards().items():
        files[CHART / "dashboards" / f"{name}.json"] = _json(board)
    return files


def wanted() -> dict[Path, str]:
    """Return every generated file with its content."""
    base = template()
    files = {**chart_files(), BASE: base, PINS / "router.txt": router_pins(), PINS / "replica-cpu.txt": replica_pins()}
    for name, extra in OVERLAYS.items():
        files |= overlay_files(OVERLAY / name, _parse(base), _parse(template(name)), extra)
    return files


def stale() -> list[str]:
    """Return the files whose content is out of date."""
    files = wanted()
    wrong = [path for path, text in files.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    return [str(path.relative_to(ROOT.parent)) for path in (*wrong, *_left_over(files))]


def _left_over(files: dict[Path, str]) -> list[Path]:
    made = (*OVERLAY.glob("*/patches/*.yaml"), *OVERLAY.glob("*/added.yaml"))
    return [path for path in made if path not in files]


def _parse(text: str) -> list[dict[str, Any]]:
    return [each for each in yaml.load_all(text, Loader=yaml.CSafeLoader) if each]


def _json(value: object) -> str:
    return json.dumps(value, indent=2) + "\n"


def main() -> int:
    """Write the files, or compare them."""
    if "--check" in sys.argv[1:]:
        names = stale()
        for name in names:
            print(f"{name} is stale; run make k8s-render")
        return bool(names)
    _write(chart_files())
    files = wanted()
    for path in _left_over(files):
        path.unlink()
    _write(files)
    return 0


def _write(files: dict[Path, str]) -> None:
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
