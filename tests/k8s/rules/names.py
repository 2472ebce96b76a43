"""Names and texts in the forms that API servers take."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from tests.k8s.charts import Object
from tests.k8s.view import pods

LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
SERVICE = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
SUBDOMAIN = re.compile(r"(?=.{1,253}$)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
PORT = re.compile(r"(?=.{1,15}$)(?=.*[a-z])[a-z0-9]+(-[a-z0-9]+)*")
VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
KEY = re.compile(rf"({SUBDOMAIN.pattern}/)?[A-Za-z0-9]([-A-Za-z0-9_.]{{0,61}}[A-Za-z0-9])?")
LONGEST = {"StatefulSet": 52, "Job": 63, "RayService": 47, "Deployment": 63}
"""A StatefulSet's revision is a label: its name and eleven characters. A Job's name is one, too."""


def names_fit(objects: list[Object]) -> list[str]:
    """Names of objects, containers, volumes and ports, and labels, have a form and a length that is allowed."""
    found = []
    for each in objects:
        owner, name = f"{each['kind']}/{each['metadata']['name']}", str(each["metadata"]["name"])
        form = SERVICE if each["kind"] in ("Service", "RayService") else SUBDOMAIN
        if not form.fullmatch(name) or len(name) > LONGEST.get(each["kind"], 253):
            found.append(f"{owner}: no name of such an object")
        found += [f"{owner}: {text}" for text in _labels(each["metadata"])]
    for pod in pods(objects):
        found += [f"{pod.owner}: {text}" for text in _labels(pod.metadata)]
        named = [*pod.containers(), *pod.spec.get("volumes", [])]
        found += [f"{pod.owner}: {each['name']!r} is no name" for each in named if not LABEL.fullmatch(each["name"])]
        ports = [port["name"] for each in pod.containers() for port in each.get("ports", [])]
        found += [f"{pod.owner}: {name!r} is no name of a port" for name in ports if not PORT.fullmatch(name)]
    return found


def _labels(metadata: dict[str, Any]) -> Iterator[str]:
    for key, value in metadata.get("labels", {}).items():
        if not KEY.fullmatch(key) or not isinstance(value, str) or not VALUE.fullmatch(value):
            yield f"{key}: {value!r} is no label"
    for key, value in metadata.get("annotations", {}).items():
        if not isinstance(value, str):
            yield f"{key}: {value!r} is no annotation"


def texts_are_texts(objects: list[Object]) -> list[str]:
    """Arguments, variables and nodes' labels are texts, whatever the values look like."""
    found = []
    for pod in pods(objects):
        for each in pod.containers():
            texts = [*each.get("command", []), *each.get("args", []), each["image"]]
            texts += [variable["value"] for variable in each.get("env", []) if "value" in variable]
            found += [f"{pod.owner}: {text!r} is no text" for text in texts if not isinstance(text, str)]
        nodes = pod.spec.get("nodeSelector", {}).items()
        found += [f"{pod.owner}: {key}: {value!r} is no text" for key, value in nodes if not isinstance(value, str)]
    return found
