"""Writes the files under k8s/ that follow from others: `python -m tests.k8s.generate`, with --check to compare only."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.k8s import dashboards
from tests.k8s.binaries import run
from tests.k8s.values_schema import values_schema

ROOT = Path(__file__).resolve().parents[2] / "k8s"
CHART = ROOT / "chart"
RELEASE = "penstock"
BASE = ROOT / "kustomize" / "base" / "penstock.yaml"


def render_base() -> str:
    """Render the chart's defaults as `helm template` does, without the test pod, which only Helm knows what to do with."""
    return run("helm", "template", RELEASE, str(CHART), "--namespace", RELEASE, "--no-hooks")


def write_schema() -> None:
    """Write the schema first: Helm checks values against it."""
    schema = values_schema((CHART / "values.yaml").read_text(encoding="utf-8"))
    (CHART / "values.schema.json").write_text(_json(schema), encoding="utf-8")


def wanted() -> dict[Path, str]:
    """Return every generated file with its content."""
    schema = values_schema((CHART / "values.yaml").read_text(encoding="utf-8"))
    files = {CHART / "values.schema.json": _json(schema), BASE: render_base()}
    for name, board in dashboards.dashboards().items():
        files[CHART / "dashboards" / f"{name}.json"] = _json(board)
    return files


def stale() -> list[str]:
    """Return the files that are not what they should be."""
    return [
        str(path.relative_to(ROOT))
        for path, text in wanted().items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    ]


def _json(value: object) -> str:
    return json.dumps(value, indent=2) + "\n"


def main() -> int:
    """Write, or compare."""
    if "--check" in sys.argv[1:]:
        files = stale()
        for name in files:
            print(f"k8s/{name} is stale; run make k8s-render")
        return bool(files)
    write_schema()
    for path, text in wanted().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
