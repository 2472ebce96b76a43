"""The file of rules, and that each alert has a runbook whose commands exist."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from cluster.alerts.alert import Severity
from cluster.alerts.rules_file import GROUPS, all_alerts, narrowed, promises, rules_file
from cluster.cli.main import build_parser, main
from k8s.render.generated import ALERTS
from penstock.values.slo import ClassSlo, OperatingPoint
from tests.k8s.kubelet.prometheus import require

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "cluster" / "reference" / "alerts.md").read_text(encoding="utf-8")


def typed(text: str) -> list[str]:
    """Return the words of a command line, with a name in place of each template."""
    return re.sub(r"\{\{.*?\}\}", "demo", text).split()


@pytest.mark.parametrize("alert", all_alerts(), ids=lambda alert: alert.name)
def test_every_alert_has_a_runbook_whose_commands_exist(alert) -> None:  # type: ignore[no-untyped-def]
    parser = build_parser(whole=True)
    assert alert.steps
    for step in alert.steps:
        program, *arguments = typed(step.command)
        assert "penstock" == program
        parser.parse_args(arguments)
        assert step.findings
        assert all(shown and action for shown, action in step.findings)
        assert step.command in alert.runbook
    for command in re.findall(r"`penstock ([^`]+)`", alert.runbook):
        parser.parse_args(typed(command))
    section = PAGE.partition(f"\n### {alert.name}\n")[2].partition("\n### ")[0]
    assert all(f"$ penstock {typed(step.command)[1]}" in section for step in alert.steps)


def test_runbooks_lead_to_alerts_that_exist() -> None:
    names = {alert.name for alert in all_alerts()}
    assert len(names) == len(all_alerts())
    for alert in all_alerts():
        assert set(re.findall(r"\bPenstock[A-Z]\w+", alert.runbook)) <= names - {alert.name}


def test_the_file_has_all_rules_as_they_are() -> None:
    written = [rule for group in yaml.safe_load(rules_file("a\n\nb"))["groups"] for rule in group["rules"]]
    assert [(alert.name, alert.query, alert.severity, alert.summary, alert.runbook) for alert in all_alerts()] == [
        (
            rule["alert"],
            rule["expr"],
            Severity(rule["labels"]["severity"]),
            rule["annotations"]["summary"],
            rule["annotations"]["runbook"],
        )
        for rule in written
    ]
    assert {alert.name: alert.pending_minutes for alert in all_alerts()} == {
        rule["alert"]: int(rule.get("for", "0m").removesuffix("m")) for rule in written
    }
    assert list(GROUPS) == [group["name"] for group in yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"]]


def test_labels_restrict_every_metric_and_are_quoted() -> None:
    assert 'absent(penstock_x{a="1"})' == narrowed("absent(penstock_x)", {"a": "1"})
    assert 'penstock_x{a="1",b="\\"2\\"",c!="d"}[5m]' == narrowed('penstock_x{c!="d"}[5m]', {"a": "1", "b": '"2"'})
    for alert in all_alerts():
        query = narrowed(alert.query, {"cluster": "eu"})
        assert len(re.findall(r"\bpenstock_", query)) == query.count('{cluster="eu"')


def test_promises_are_described_with_their_thresholds() -> None:
    points = {"a": OperatingPoint(interactive=ClassSlo(ttft_p99_s=1.0), attainment=0.95), "b": OperatingPoint()}
    lines = promises(points).splitlines()
    assert (
        "pool a, class interactive: 95 % within the SLO; "
        "alerts above 72 % in 1h and 5m, 30 % in 6h and 30m, 5 % in 3d and 6h missed" == lines[0]
    )
    assert ["no SLO, so no alert on a burn rate"] * 5 == [line.partition(": ")[2] for line in lines[1:]]


@pytest.mark.slow
def test_prometheus_takes_what_config_alerts_prints(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PENSTOCK_SETTINGS", raising=False)
    settings, rules = tmp_path / "cluster.toml", tmp_path / "rules.yaml"
    settings.write_text("[pools.chat.slo]\nattainment = 0.95\nstandard = {ttft_p99_s = 2.0}\n", encoding="utf-8")
    assert 0 == main(["config", "alerts", str(settings), "--label", "cluster=eu-1", "--label", 'job=a "b"'])
    text = capsys.readouterr().out
    assert "# pool chat, class standard: 95 % within the SLO" in text
    assert "# pool chat, class batch: no SLO" in text
    rules.write_text(text, encoding="utf-8")
    done = subprocess.run(
        [require("promtool"), "check", "rules", str(rules)], capture_output=True, text=True, check=False
    )
    assert (0, f"{len(all_alerts())} rules") == (done.returncode, re.findall(r"\d+ rules", done.stdout)[0])
    labels = [rule["labels"] for group in yaml.safe_load(text)["groups"] for rule in group["rules"]]
    assert {("eu-1", 'a "b"')} == {(each["cluster"], each["job"]) for each in labels}


@pytest.mark.parametrize("label", ["cluster", "=eu", "a-b=c", "severity=critical"])
def test_a_label_that_is_none_is_refused(label: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["config", "alerts", "--label", label])
    assert label in capsys.readouterr().err


def test_wrong_settings_print_no_rules(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = tmp_path / "cluster.toml"
    settings.write_text("[pools.chat.slo]\nattainment = 1.5\n", encoding="utf-8")
    assert 2 == main(["config", "alerts", str(settings)])
    said = capsys.readouterr()
    assert "pools.chat.slo.attainment" in said.err
    assert "" == said.out
