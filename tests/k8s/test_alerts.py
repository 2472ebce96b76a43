"""Alerts: each fires on what it is for and on nothing else, and says what to do in words that exist."""

from __future__ import annotations

import re
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from google.rpc import code_pb2  # type: ignore[import-untyped]  # no py.typed marker

from cluster import errors
from cluster.control.settings import ControlMode
from cluster.trust.tls import ROUTER_TLS
from k8s.render import dashboards
from penstock.models import RequestClass
from router.admission.demand import Verdict
from router.identity.authenticator import KEYS_FILE
from router.links.failure import Failure
from tests.k8s.alerts import alerts, matchers, names
from tests.k8s.kubelet.prometheus import require

SERIES = Path(__file__).parent / "alert_tests.yaml"


def shown() -> Iterator[tuple[str, bool, set[str]]]:
    """Yield each alert that a test looks at, whether it fires there, and the metrics that it has to go by."""
    for test in yaml.safe_load(SERIES.read_text(encoding="utf-8"))["tests"]:
        given = {name for each in test["input_series"] for name in names(each["series"])}
        for each in test.get("alert_rule_test", []):
            yield each["alertname"], bool(each.get("exp_alerts")), given


@pytest.mark.slow
def test_alerts_fire_when_they_should_and_only_then(tmp_path: Path) -> None:
    """`alert_tests.yaml` has the series; what an alert says is not compared."""
    rules = [{key: value for key, value in rule.items() if key != "annotations"} for rule in alerts()]
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": [{"name": "x", "rules": rules}]}), encoding="utf-8")
    (tmp_path / "tests.yaml").write_text(SERIES.read_text(encoding="utf-8"), encoding="utf-8")
    done = subprocess.run(
        [require("promtool"), "test", "rules", "tests.yaml"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert 0 == done.returncode, done.stdout + done.stderr


def test_every_alert_is_shown_to_fire_and_to_be_silent() -> None:
    """Silent among series that it looks at: without any, nothing fires."""
    looked_at = {str(rule["alert"]): names(rule["expr"]) for rule in alerts()}
    ways = defaultdict(set)
    for alert, fires, given in shown():
        assert alert in looked_at, "there is no such alert"
        assert given & looked_at[alert], alert
        ways[alert].add(fires)
    assert {alert: {True, False} for alert in looked_at} == ways


# --- words ------------------------------------------------------------------------------------------------------------


def subclasses(kind: type[errors.PenstockError]) -> Iterator[type[errors.PenstockError]]:
    yield kind
    for each in kind.__subclasses__():
        yield from subclasses(each)


def reasons(*kinds: type[errors.PenstockError]) -> set[str]:
    return {each.reason for kind in kinds for each in subclasses(kind)}


SEEN = reasons(errors.RequestError, errors.UnavailableError, errors.GenerationFailedError) | {
    errors.PenstockError.reason
}
"""Reasons that a call can end with."""
LABELS = {
    "code": set(code_pb2.Code.keys()),
    "reason": SEEN,
    "class": {each.name.lower() for each in RequestClass},
    "outcome": {each.value for each in Verdict} | {"good", "bad", "ok", "error", "hit", "miss", "none"},
    "mode": {each.value for each in ControlMode},
    "failure": {each.value for each in Failure},
    "file": {KEYS_FILE, ROUTER_TLS},
}
"""Values by label, where they are known."""


def test_alerts_and_panels_match_labels_that_exist() -> None:
    """A pattern that nothing can match is an alert that never fires."""
    texts = [
        *(rule["expr"] for rule in alerts()),
        *(query for _, _, query in dashboards.queries()),
        *re.findall(r"series: '([^']*)'", SERIES.read_text(encoding="utf-8")),
    ]
    unknown = {
        (label, value)
        for text in texts
        for label, value in matchers(text)
        if label in LABELS and value not in LABELS[label]
    }
    assert not unknown
    assert [("code", "INTERNAL"), ("code", "ERROR"), ("pool", "a")] == matchers('{code=~"INTERNAL|ERROR", pool!="a"}')


def words(text: Any) -> set[str]:
    return set(re.findall(r"\b[A-Z]+(?:_[A-Z]+)*\b", str(text)))


def test_texts_name_reasons_that_calls_end_with() -> None:
    texts = [rule["annotations"]["runbook"] for rule in alerts()]
    texts += [panel.text for _, panels in dashboards.BOARDS.values() for panel in panels]
    named = {word for text in texts for word in words(text)}
    internal = reasons(errors.PenstockError) - SEEN

    assert not named & internal
    assert not {word for word in named if "_" in word} - SEEN
    assert "GENERATION_FAILED" in named
    assert {"ENGINE", "LINK"} <= internal


def test_every_alert_says_what_to_do() -> None:
    for rule in alerts():
        assert {"summary", "runbook"} == set(rule["annotations"]), rule["alert"]
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
    assert len(alerts()) == len({rule["alert"] for rule in alerts()})
