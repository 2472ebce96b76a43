"""Writes the reference pages from the code, or checks that the committed ones are current.

Usage: generate.py | generate.py --check
"""

from __future__ import annotations

import sys
from pathlib import Path

from reference import alerts, api, bodies, client, commands, engine, errors, metrics, settings

ROOT = Path(__file__).resolve().parents[1]
PAGES = {
    "cluster/reference/settings.md": settings.render,
    "cluster/reference/metrics.md": metrics.render,
    "cluster/reference/alerts.md": alerts.render,
    "cluster/reference/cli.md": commands.render,
    "proto/reference/api.md": api.render,
    "proto/reference/client.md": client.render,
    "deployments/reference/engine-arguments.md": engine.render,
    "proto/reference/errors.md": errors.render,
    "proto/reference/bodies.md": bodies.render,
}


def main() -> int:
    """Run the command line."""
    check = sys.argv[1:] == ["--check"]
    if sys.argv[1:] and not check:
        sys.stderr.write(f"{__doc__}\n")
        return 2
    stale = []
    for name, render in PAGES.items():
        path, text = ROOT / name, render()
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        stale.append(name)
        if not check:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
    if check and stale:
        sys.stderr.write(f"reference pages are not current, run `make reference`: {', '.join(stale)}\n")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
