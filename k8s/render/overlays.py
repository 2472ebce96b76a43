"""The Kustomize overlays: the chart's output with an overlay's values, as patches of the base.

So overlay and chart can't drift apart, and an overlay still shows its changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml

Object = dict[str, Any]
_CHART = Path(__file__).resolve().parents[1] / "chart" / "Chart.yaml"
_RELEASE: str = yaml.safe_load(_CHART.read_text(encoding="utf-8"))["appVersion"]
OVERLAYS: dict[str, dict[str, Any]] = {
    "dev": {
        "resources": ["namespace.yaml"],
        "generatorOptions": {"disableNameSuffixHash": True},
        "secretGenerator": [
            {"name": "penstock-cluster", "literals": ["cluster-secret=for-development-only-0123456789"]},
            {"name": "penstock-ray-token", "literals": ["auth_token=for-development-only"]},
            {"name": "penstock-redis", "literals": ["password=for-development-only"]},
            {"name": "penstock-keys", "files": ["keys.toml"]},
        ],
    },
    "prod": {
        "resources": [],
        "images": [
            {"name": "ghcr.io/penstock/penstock-router", "newTag": _RELEASE},
            {"name": "ghcr.io/penstock/penstock-replica-cuda", "newTag": _RELEASE},
        ],
    },
    "gpu-tp": {"resources": []},
    "tls": {"resources": []},
}
"""Additions of each overlay beside its patches. The secrets of dev are public; it is for a laptop."""

_HEAD = "# Written by `make k8s-render` from values.yaml; change that.\n"


def overlay_files(folder: Path, base: list[Object], objects: list[Object], extra: dict[str, Any]) -> dict[Path, str]:
    """Return the files that turn the base into these objects."""
    before, after = ({identity(each): each for each in every} for every in (base, objects))
    added = [each for key, each in after.items() if key not in before]
    patches = [*_deletions(key for key in before if key not in after)]
    files: dict[Path, str] = {}
    for key, each in after.items():
        if key in before and each != before[key]:
            name = f"{key[0].lower()}-{key[1]}.yaml"
            files[folder / "patches" / name] = _HEAD + _dump(list(_operations(before[key], each)))
            patches.append({"target": {"kind": key[0], "name": key[1]}, "path": f"patches/{name}"})
    resources = ["../../base", *extra["resources"]]
    if added:
        files[folder / "added.yaml"] = _HEAD + "---\n".join(_dump(each) for each in added)
        resources.append("added.yaml")
    kustomization = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        **extra,
        "resources": resources,
        "patches": patches,
    }
    files[folder / "kustomization.yaml"] = _HEAD + _dump(kustomization)
    return files


def identity(each: Object) -> tuple[str, str]:
    """Return the kind and name that identify an object."""
    return each["kind"], each["metadata"]["name"]


def _deletions(keys: Iterable[tuple[str, str]]) -> Iterator[dict[str, Any]]:
    for kind, name in keys:
        yield {
            "target": {"kind": kind, "name": name},
            "patch": _dump({"$patch": "delete", "kind": kind, "metadata": {"name": name}}),
        }


def _operations(before: Any, after: Any, path: str = "", deep: int = 6) -> Iterator[dict[str, Any]]:
    """Yield the differences as JSON patches, at a depth that stays readable."""
    if not (deep and isinstance(before, dict) and isinstance(after, dict)):
        yield {"op": "replace", "path": path, "value": after}
        return
    for key in sorted(before.keys() | after.keys()):
        here = f"{path}/{key.replace('~', '~0').replace('/', '~1')}"
        if key not in after:
            yield {"op": "remove", "path": here}
        elif key not in before:
            yield {"op": "add", "path": here, "value": after[key]}
        elif before[key] != after[key]:
            yield from _operations(before[key], after[key], here, deep - 1)


class _Dumper(yaml.SafeDumper):
    """Dumper that writes texts of several lines as blocks."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def _dump(value: Any) -> str:
    return yaml.dump(value, Dumper=_Dumper, sort_keys=True, width=120)
