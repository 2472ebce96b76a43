"""Reads the alert rules, and what they and dashboards name."""

from __future__ import annotations

import re
from typing import Any

import yaml

from k8s.render.generated import CHART


def alerts() -> list[dict[str, Any]]:
    """Return the rules."""
    text = (CHART / "alerts" / "penstock.yaml").read_text(encoding="utf-8")
    return [rule for group in yaml.safe_load(text)["groups"] for rule in group["rules"]]


def names(promql: str) -> set[str]:
    """Return the metrics that a query or series names."""
    return set(re.findall(r"\b(?:penstock|gen_ai_(?:client|server))_[a-z0-9_]+", promql))


def matchers(promql: str) -> list[tuple[str, str]]:
    """Return the label and value of each matcher and each label of a series; of patterns each alternative."""
    found = re.findall(r'(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"', promql)
    return [(label, each) for label, sign, value in found for each in (value.split("|") if "~" in sign else [value])]
