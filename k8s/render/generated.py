"""The content of every generated file under k8s/, and of the router image's pins. Writes it, or compares it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import yaml

from k8s.render import dashboards
from k8s.render.binaries import run
from k8s.render.overlays import OVERLAYS, overlay_files
from k8s.render.pins import router_pins
from k8s.render.values_schema import values_schema

ROOT = Path(__file__).resolve().parents[2] / "k8s"
CHART = ROOT / "chart"
RELEASE = "penstock"
BASE = ROOT / "kustomize" / "base" / "penstock.yaml"
OVERLAY = ROOT / "kustomize" / "overlays"
PINS = ROOT.parent / "requirements" / "router.txt"
UNDER = {"prod": [CHART / "values-production.yaml"]}
"""Values files below an overlay's own."""


def template(overlay: str = "") -> str:
    """Render the chart's defaults, or an overlay's values, without the test pod, which only Helm can use."""
    files = [*UNDER.get(overlay, []), OVERLAY / overlay / "values.yaml"] if overlay else []
    values = [f"--values={file}" for file in files]
    return run("helm", "template", RELEASE, str(CHART), "--namespace", RELEASE, "--no-hooks", *values)


def write_schema() -> None:
    """Write the schema first, because Helm checks values against it."""
    schema = values_schema((CHART / "values.yaml").read_text(encoding="utf-8"))
    (CHART / "values.schema.json").write_text(_json(schema), encoding="utf-8")


def wanted() -> dict[Path, str]:
    """Return every generated file with its content."""
    schema = values_schema((CHART / "values.yaml").read_text(encoding="utf-8"))
    base = template()
    files = {CHART / "values.schema.json": _json(schema), BASE: base, PINS: router_pins()}
    for name, extra in OVERLAYS.items():
        files |= overlay_files(OVERLAY / name, _parse(base), _parse(template(name)), extra)
    for name, board in dashboards.dashboards().items():
        files[CHART / "dashboards" / f"{name}.json"] = _json(board)
    return files


def stale() -> list[str]:
    """Return the files whose content is out of date."""
    files = wanted()
    wrong = [path for path, text in files.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    return [str(path.relative_to(ROOT.parent)) for path in (*wrong, *_left_over(files))]


def _left_over(files: dict[Path, str]) -> list[Path]:
    return [path for path in OVERLAY.glob("*/patches/*.yaml") if path not in files]


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
    write_schema()
    files = wanted()
    for path in _left_over(files):
        path.unlink()
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return 0
