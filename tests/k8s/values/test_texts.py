"""Every text of the values reaches an object as it is, whatever it looks like, and none is ignored."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from k8s.render.binaries import run
from k8s.render.generated import CHART, RELEASE
from k8s.render.values_schema import FREE_MAPS, FREE_NAMES, NAMED_MAPS, pattern_of
from tests.k8s.charts import of_kind, parse
from tests.k8s.view import serve_config, settings_toml

pytestmark = pytest.mark.slow

VALUES = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
SCHEMA = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
Path_ = tuple[str, ...]
SERVICE = {"type": "LoadBalancer"}
EVERYTHING: dict[str, Any] = {
    "router": {
        "http": {"enabled": True, "ingress": {"enabled": True, "hostnames": ["a.example"]}, "service": SERVICE},
        "ingress": {"enabled": True, "hostnames": ["b.example"]},
    },
    "console": {"service": SERVICE, "ingress": {"enabled": True}},
    "gateway": {
        "http": {"enabled": True, "hostnames": ["c.example"], "parentRefs": [{"name": "other"}]},
        "backendTls": {"system": True},
    },
    "networkPolicy": {"modelSources": [{"podSelector": {}}]},
    "pools": {"demo": {"weights": {"volume": "newClaim", "readOnly": False}}},
}
EXTERNAL: dict[str, Any] = {"redis": {"enabled": False}, "externalRedis": {"enabled": True, "tls": {"enabled": True}}}
WEIGHTS: dict[str, Any] = {"networkPolicy": {"modelSources": [{"podSelector": {}}]}}
SCENES: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    # Values, and the beginnings of what they leave out.
    "everything": (
        EVERYTHING,
        (
            "externalRedis.",
            "certificates.",
            "ray.modelCache.",
            "pools.demo.weights.existingClaim",
            "pools.demo.weights.image.",
            "pools.demo.weights.download.",
        ),
    ),
    "certificates": (EVERYTHING, ()),
    "cache": ({"networkPolicy": {"enabled": False}}, ()),
    "sentinel": (
        EXTERNAL | {"externalRedis": {**EXTERNAL["externalRedis"], "mode": "sentinel", "sentinel": {"hosts": ["s:1"]}}},
        ("externalRedis.urlKey",),
    ),
    "secret": (EXTERNAL, ()),
    "image": (WEIGHTS | {"pools": {"demo": {"weights": {"volume": "image"}}}}, ()),
    "claim": (
        WEIGHTS
        | {
            "pools": {
                "demo": {
                    "settings": {"model": "org/name"},
                    "weights": {"volume": "existingClaim", "download": {"enabled": True}},
                }
            }
        },
        (),
    ),
}
ONLY = {
    "certificates": ("certificates.",),
    "cache": ("ray.modelCache.",),
    "sentinel": ("externalRedis.",),
    "secret": ("externalRedis.existingSecret", "externalRedis.urlKey"),
    "image": ("pools.demo.weights.image.",),
    "claim": ("pools.demo.weights.existingClaim", "pools.demo.weights.download."),
}
"""What a scene is about, where that is not nearly everything."""


def texts(value: Any, schema: dict[str, Any], path: Path_ = ()) -> Iterator[tuple[Path_, bool]]:
    """Yield the values that may be any text, or a list of any texts."""
    if path and (pattern_of(path) in FREE_MAPS or path[-1] in FREE_NAMES or path[-1] in NAMED_MAPS):
        return
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from texts(inner, schema.get("properties", {}).get(key, {}), (*path, key))
    elif isinstance(value, str) and schema.keys() <= {"type", "description"}:
        yield path, False
    elif path[-1:] and path[-1] in ("hostnames", "dnsNames", "include", "exclude"):
        yield path, True


def odd(number: int) -> str:
    return f"{number}: - 'yes' #\"\\{{x}} 1e3"


def with_pool_schema() -> dict[str, Any]:
    pool = SCHEMA["properties"]["pools"]["additionalProperties"]
    return {**SCHEMA, "properties": {**SCHEMA["properties"], "pools": {"properties": {"demo": pool}}}}


ALL = dict(enumerate(texts(VALUES, with_pool_schema()), 100))


def chosen(scene: str) -> list[int]:
    only, without = ONLY.get(scene, ("",)), SCENES[scene][1]
    names = {number: ".".join(path) for number, (path, _) in ALL.items()}
    return [number for number, name in names.items() if name.startswith(only) and not name.startswith(without)]


def lost(scene: str, numbers: list[int], folder: Path, chart: Path = CHART) -> set[str]:
    """Render with odd texts, and return the paths of those that no object has."""
    values: dict[str, Any] = json.loads(json.dumps(SCENES[scene][0]))
    for number in numbers:
        path, is_list = ALL[number]
        here = values
        for part in path[:-1]:
            here = here.setdefault(part, {})
        here[path[-1]] = [odd(number)] if is_list else odd(number)
    file = folder / f"{scene}.yaml"
    file.write_text(json.dumps(values), encoding="utf-8")
    under = [f"--values={chart}/ci/everything-values.yaml"] if scene in ("everything", "certificates") else []
    objects = parse(run("helm", "template", RELEASE, str(chart), *under, f"--values={file}"))
    found = list(_strings(objects))
    found += _strings(settings_toml(objects))
    found += _strings([serve_config(service) for service in of_kind(objects, "RayService")])
    return {".".join(ALL[number][0]) for number in numbers if not any(odd(number) in text for text in found)}


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _strings(key)
            yield from _strings(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _strings(inner)
    elif isinstance(value, str):
        yield value


@pytest.mark.parametrize("scene", SCENES)
def test_no_text_of_the_values_is_changed_or_ignored(scene: str, tmp_path: Path) -> None:
    assert set() == lost(scene, chosen(scene), tmp_path)


def test_every_text_is_tried() -> None:
    tried = {number for scene in SCENES for number in chosen(scene)}
    assert [] == [".".join(path) for number, (path, _) in ALL.items() if number not in tried]
    assert 70 < len(tried)


@pytest.mark.parametrize(
    ("file", "right", "wrong", "complaint"),
    [
        # Without quotes: YAML takes it for something else, or does not take it.
        ("tests/generate.yaml", '{{ printf "--model=%s" $model | quote }}', "--model={{ $model }}",
         "error converting YAML"),
        ("router.yaml", "secretName: {{ include \"penstock.keysSecret\" . | quote }}",
         "secretName: {{ include \"penstock.keysSecret\" . }}", "error converting YAML"),
        ("_services.tpl", "ingressClassName: {{ . | quote }}", "ingressClassName: any", "router.ingress.className"),
    ],
)  # fmt: skip
def test_a_text_without_quotes_or_without_use_is_found(
    file: str, right: str, wrong: str, complaint: str, tmp_path: Path
) -> None:
    chart = tmp_path / "chart"
    shutil.copytree(CHART, chart)
    template = chart / "templates" / file
    text = template.read_text(encoding="utf-8")
    assert right in text
    template.write_text(text.replace(right, wrong), encoding="utf-8")
    try:
        found = ", ".join(lost("everything", chosen("everything"), tmp_path, chart))
    except subprocess.CalledProcessError as error:
        found = error.stderr
    assert complaint in found
