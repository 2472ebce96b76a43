"""`penstock simulate` from the command line."""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from cluster.cli.main import main
from cluster.settings import SimSettings
from loadtest.simulate.flags import ENGINE_FLAGS


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    rnd = random.Random(1)
    rows = [f"{n / 8},{rnd.randint(10, 800)},{rnd.randint(2, 60)}" for n in range(200)]
    path = tmp_path / "trace.csv"
    path.write_text("\n".join(["arrival_s,prompt_tokens,output_tokens", *rows]))
    return path


def run(capsys: pytest.CaptureFixture[str], *flags: str | Path) -> tuple[int, str, str]:
    try:
        status = main(["simulate", *map(str, flags)])
    except SystemExit as end:
        status = int(end.code or 0)
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_a_search_looks_for_no_floor_where_the_bounds_leave_none(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ("--limit", "60", "--replicas", "2", "--min-replicas", "2", "--max-replicas", "2", "--tune", "0.9")
    status, out, _ = run(capsys, "--trace", trace, *flags, "--json")
    found = json.loads(out)
    assert (0, None) == (status, found["floor"])
    assert "floor" not in found["verdict"]


def test_a_trace_may_be_called_as_it_likes(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _err = run(capsys, "--trace", trace.rename(trace.with_name("of[red].csv")))
    assert (0, True) == (status, "of[red].csv: " in out)


def test_lines_that_are_left_out_are_told(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with trace.open("a") as file:
        file.write("\n1,0,5\n1,5,0\n")
    status, out, err = run(capsys, "--trace", trace, "--json")
    assert (0, 200) == (status, json.loads(out)["requests"])
    assert "2 of 202 lines have no prompt or no output tokens and are left out" in err


def test_json_has_every_figure(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capsys, "--trace", trace, "--replicas", "2", "--scale-rate", "2", "--json")

    figures = json.loads(out)
    assert (0, "") == (status, err)
    assert {"requests", "completed", "rejected", "ttft_s", "itl_s", "e2e_s", "attainment", "replica_hours",
            "preemptions", "reversals", "wall_s"} <= figures.keys()  # fmt: skip
    assert (200, 200, 0) == (figures["requests"], figures["completed"], figures["rejected"])
    assert ["mean", "p50", "p95", "p99"] == list(figures["ttft_s"])
    assert figures["virtual_s"] < 0.6 * 200 / 8
    assert figures["replica_hours"] == pytest.approx(2 * figures["virtual_s"] / 3600)


def test_standbys_sleep_after_a_peak(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    busy = [n / 8 for n in range(1600)]
    rows = [f"{at},300,40" for at in [*busy, *(200 + 5 * n for n in range(240))]]
    path = tmp_path / "peak.csv"
    path.write_text("\n".join(["arrival_s,prompt_tokens,output_tokens", *rows]))
    flags = ("--trace", path, "--replicas", "4", "--base-ms", "40", "--max-num-seqs", "8", "--json")
    without = json.loads(run(capsys, *flags)[1])
    found = json.loads(run(capsys, *flags, "--standby", "2", "--standby-price", "0.1")[1])
    assert 0.0 == without["asleep_hours"]
    assert 0.0 < found["asleep_hours"] < found["replica_hours"]
    assert found["replica_hours"] > without["replica_hours"]


def test_requests_that_come_at_once_have_no_rate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "t.csv"
    path.write_text("arrival_s,prompt_tokens,output_tokens\n0,10,5\n")
    status, out, _ = run(capsys, "--trace", path)

    assert status == 0
    assert "t.csv: 1 at once, policy penstock" in out


@pytest.mark.parametrize("flags", [("static",), ("hpa", "--metric", "queue"), ("ray", "--target", "3")])
def test_the_table_and_the_page_show_a_run(
    trace: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path, flags: tuple[str, ...]
) -> None:
    page = tmp_path / "run.html"
    status, out, _ = run(capsys, "--trace", trace, "--policy", *flags, "--cold-start", "5", "--html", page)

    assert status == 0
    assert "200: 200 completed, 0 rejected" in out
    assert "(TTFT within 2 s, own ITL p95 within 0.1 s)" in " ".join(out.split())
    text = page.read_text()
    assert 10 == text.count("<figure>") == text.count('<svg viewBox="0 0 420')
    assert "nan" not in text
    assert "://" not in text
    assert f"Policy {flags[0]}" in text
    assert "SLO 2 s" in text


@pytest.mark.slow
def test_the_picture_shows_the_panels_of_the_page_below_each_other(
    trace: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    picture = tmp_path / "run.png"
    status, _, err = run(capsys, "--trace", trace, "--png", picture, "--json")

    assert (0, "") == (status, err)
    content = picture.read_bytes()
    assert content.startswith(b"\x89PNG\r\n")
    width, height = int.from_bytes(content[16:20], "big"), int.from_bytes(content[20:24], "big")
    assert height > 1.4 * width


SHORT = "arrival_s,prompt_tokens,output_tokens\n0,100,10\n0.1,100,10\n"


@pytest.mark.slow
def test_a_run_of_less_than_a_second_has_a_picture_and_a_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    short = tmp_path / "short.csv"
    short.write_text(SHORT)
    picture, page = tmp_path / "run.png", tmp_path / "run.html"
    status, out, err = run(capsys, "--trace", short, "--png", picture, "--html", page, "--json")
    assert (0, "", 2) == (status, err, json.loads(out)["completed"])
    assert json.loads(out)["virtual_s"] < 1
    assert picture.read_bytes().startswith(b"\x89PNG\r\n")
    assert 10 == page.read_text().count("<figure>")


@pytest.mark.slow
def test_a_run_that_takes_no_time_has_figures_and_no_picture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    short = tmp_path / "short.csv"
    short.write_text("arrival_s,prompt_tokens,output_tokens\n0,100,10\n")
    free = ("--base-ms", "0", "--per-token-us", "0", "--per-kv-token-us", "0")
    status, out, err = run(capsys, "--trace", short, *free, "--png", tmp_path / "run.png", "--json")
    assert (2, 1) == (status, json.loads(out)["completed"])
    assert "png must be of a run that lasts longer than 0 s, got 0 s" in err


@pytest.mark.slow
def test_a_picture_of_a_trace_whose_name_looks_like_a_formula(
    trace: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    picture = tmp_path / "run.png"
    status, _, err = run(capsys, "--trace", trace.rename(trace.with_name("of$_$.csv")), "--png", picture, "--json")
    assert (0, "") == (status, err)
    assert picture.read_bytes().startswith(b"\x89PNG\r\n")


@pytest.mark.slow
@pytest.mark.parametrize("flag", ["--html", "--png"])
def test_a_report_that_cannot_be_written_is_said(
    trace: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flag: str
) -> None:
    # Long paths would be wrapped.
    monkeypatch.chdir(tmp_path)
    status, _, err = run(capsys, "--trace", trace, flag, "none/run")
    assert status != 0
    assert f"{flag[2:]} must name a file in a folder that exists, got none/run" in err

    status, _, err = run(capsys, "--trace", trace, flag, ".")
    assert status != 0
    assert f"{flag[2:]}: . cannot be written: Is a directory" in err


def test_a_part_of_a_trace_in_another_class(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "--trace", trace, "--limit", "7", "--class", "batch", "--json")
    assert 7 == json.loads(out)["requests"]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--trace", "{trace}", "--scale-rate", "0"), "--scale-rate: must be a number above 0, got '0'"),
        (("--trace", "{trace}", "--limit", "0"), "--limit: must be a whole number of at least 1, got '0'"),
        (("--trace", "{trace}", "--max-num-seqs", "4097"), "--max-num-seqs: must be a whole number of at most 4096"),
        (("--trace", "{trace}", "--base-ms", "1e300"), "--base-ms: must be a number of at most 60000, got '1e300'"),
        (("--trace", "{trace}", "--per-token-us", "1e300"), "--per-token-us: must be a number of at most 1000000, got"),
        (("--trace", "{trace}", "--per-kv-token-us", "1e300"), "--per-kv-token-us: must be a number of at most 1000,"),
        (("--trace", "{trace}", "--replicas", "1000000"), "--replicas: must be a whole number of at most 10000, got"),
        (("--trace", "{trace}", "--routers", "1000000"), "--routers: must be a whole number of at most 1000, got"),
        (("--trace", "{trace}", "--cold-start", "1e300"), "--cold-start: must be a number of at most 315576000000"),
        (("--trace", "{trace}", "--standby-price", "1.1"), "--standby-price: must be a number of at most 1, got '1.1'"),
        (
            ("--trace", "{trace}", "--policy", "hpa", "--standby", "2"),
            "standby is for the policies penstock and penstock-slow, not for hpa",
        ),
        (
            ("--trace", "{trace}", "--policy", "static", "--wake", "2"),
            "wake is for the policies penstock and penstock-slow, not for static",
        ),
        (("--trace", "{trace}", "--wake", "2"), "wake is for standby: nobody stands by, got 2"),
        (
            ("--trace", "{trace}", "--standby", "0", "--standby-price", "0.5"),
            "standby-price is for standby: nobody stands by, got 0.5",
        ),
        (("--trace", "{trace}", "--limit", "x"), "--limit: must be a whole number of at least 1, got 'x'"),
        (
            ("--trace", "{trace}", "--policy", "static", "--target", "1"),
            "target is for policies that add replicas, not for static",
        ),
        (("--trace", "{trace}", "--target", "1.5"), "target must be at most 1 for penstock: the part of a replica's"),
        (("--trace", "{trace}", "--metric", "kv"), "metric is for the policy hpa, not for penstock"),
        (("--trace", "{trace}", "--tune", "1.5"), "--tune: must be a number above 0 of at most 1, got '1.5'"),
        (
            ("--trace", "{trace}", "--tune", "0.9", "--target", "0.5"),
            "target is what tune looks for with policy penstock, got 0.5",
        ),
        (
            ("--trace", "{trace}", "--tune", "0.9", "--policy", "static", "--min-replicas", "5", "--max-replicas", "3"),
            "min-replicas must be at most max-replicas = 3, got 5",
        ),
        (
            ("--trace", "{trace}", "--tune", "0.9", "--policy", "static", "--replicas", "3"),
            "replicas is what tune looks for with policy static, got 3",
        ),
        (("--trace", "{trace}", "--max-num-batched-tokens", "8"), "must be at least max_num_seqs = 64, got 8"),
        (
            ("--trace", "{trace}", "--policy", "hpa", "--replicas", "9", "--max-replicas", "4"),
            "replicas must be 0 to max_replicas = 4, got 9",
        ),
        (
            ("--trace", "{trace}", "--policy", "static", "--replicas", "4", "--max-replicas", "2"),
            "max-replicas must be at least replicas = 4 with policy static, which keeps that number, got 2",
        ),
        (
            ("--trace", "{trace}", "--policy", "penstock-fast", "--min-replicas", "2"),
            "min-replicas must be at most replicas = 1 with policy penstock-fast, which keeps that number, got 2",
        ),
        (
            ("--trace", "{trace}", "--policy", "static", "--replicas", "0"),
            "replicas must be at least 1 with policy static",
        ),
        (
            ("--trace", "{trace}", "--policy", "hpa", "--min-replicas", "0"),
            "min-replicas must be at least 1 with policy hpa, which starts nothing from 0 replicas, got 0",
        ),
        (
            ("--trace", "{trace}", "--policy", "dynamo", "--replicas", "0", "--min-replicas", "0"),
            "replicas or min-replicas must be at least 1 with policy dynamo, which starts nothing from 0 replicas",
        ),
        (
            ("--trace", "{trace}", "--policy", "wva", "--replicas", "0", "--min-replicas", "0"),
            "replicas or min-replicas must be at least 1 with policy wva, which starts nothing from 0 replicas",
        ),
        (("--trace", "nowhere.csv"), "nowhere.csv: No such file"),
        ((), "give --trace, --models or --validate"),
        (("--trace", "{trace}", "--fit", "1-3"), "fit is for validate"),
        (("--validate", ".", "--fit", "5-1"), "two whole numbers from 1 such as 1-100, got '5-1'"),
    ],
)
def test_wrong_flags_are_named(
    trace: Path, capsys: pytest.CaptureFixture[str], flags: tuple[str, ...], words: str
) -> None:
    status, _, err = run(capsys, *(flag.format(trace=trace) for flag in flags))
    assert 2 == status
    assert words in " ".join(err.split())


@pytest.mark.parametrize(("flag", "kind", "default", "_text"), ENGINE_FLAGS)
def test_flags_of_the_engine_have_the_bounds_of_its_settings(
    flag: str, kind: Callable[[str], float], default: float, _text: str
) -> None:
    name = flag.replace("-", "_")
    assert default == getattr(SimSettings(**{name: kind(str(default))}), name)
    most = next((each.le for each in SimSettings.model_fields[name].metadata if hasattr(each, "le")), None)
    if most is not None:
        assert most == kind(str(most))
        with pytest.raises(argparse.ArgumentTypeError, match=f"at most {most}"):
            kind(str(most + 1))


def test_few_requests_are_not_shown_as_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "t.csv"
    path.write_text("arrival_s,prompt_tokens,output_tokens\n0,10,5\n3600,10,5\n")
    _status, out, _err = run(capsys, "--trace", path)
    assert "1.00 h at 0.00056 requests/s" in " ".join(out.split())


@pytest.mark.parametrize("flag", ["--trace", "--html", "--png", "--compare"])
def test_what_a_validation_does_not_do_is_refused(
    flag: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, err = run(capsys, "--validate", tmp_path, flag, tmp_path / "x")
    assert (2, "") == (status, out)
    assert f"penstock: {flag[2:]} does not go together with validate, got {tmp_path / 'x'}\n" == err


def test_the_sample_is_a_trace_that_ships_with_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "--trace", "sample", "--limit", "50", "--json")
    assert (0, 50) == (status, json.loads(out)["completed"])


def test_two_policies_are_compared_on_one_page(trace: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    _, before, _ = run(capsys, "--trace", trace, "--policy", "static", "--json")
    other, page = tmp_path / "before.json", tmp_path / "run.html"
    other.write_text(before)
    status, _, err = run(capsys, "--trace", trace, "--html", page, "--compare", other)
    assert (0, "") == (status, err)
    text = page.read_text()
    assert "Compared with before" in text
    assert 12 == text.count("<figure>")
    assert f"{json.loads(before)['replica_hours']:,.2f}" in text


def test_what_is_no_report_of_a_simulation_is_named(
    trace: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    other = tmp_path / "x.json"
    other.write_text('{"requests": 3}')
    status, _, err = run(capsys, "--trace", trace, "--html", tmp_path / "p.html", "--compare", other)
    assert 2 == status
    assert "x.json must be the JSON of a simulation; it has no attainment, " in " ".join(err.split())
    status, _, err = run(capsys, "--trace", trace, "--compare", other)
    assert 2 == status
    assert "compare is a part of the page, so html must be given with it" in err


@pytest.fixture
def rising(tmp_path: Path) -> Path:
    """A load for two replicas, and then for four."""
    rows = [f"{n / (4 if n < 400 else 8)},300,60" for n in range(1200)]
    path = tmp_path / "rising.csv"
    path.write_text("\n".join(["arrival_s,prompt_tokens,output_tokens", *rows]))
    return path


_SMALL = ("--max-num-seqs", "4", "--base-ms", "30", "--cold-start", "10", "--slo-ttft", "1", "--max-replicas", "12")


def test_the_fewest_replicas_that_keep_the_slo_are_found(rising: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "--trace", rising, *_SMALL, "--policy", "static", "--tune", "0.95", "--json")
    found = json.loads(out)
    count = found["tuned"]["best"]["value"]
    assert found["attainment"] == found["tuned"]["best"]["attainment"] >= 0.95
    assert found["floor"] is None
    assert f"static holds 95.00% with replicas {count}: " in found["verdict"]
    flags = [each for each in _SMALL if each not in ("--max-replicas", "12")]
    _, out, _ = run(capsys, "--trace", rising, *flags, "--policy", "static", "--replicas", str(count - 1), "--json")
    assert json.loads(out)["attainment"] < 0.95


def test_a_target_is_found_and_compared_with_a_floor(
    rising: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "run.html"
    flags = ("--trace", rising, *_SMALL, "--policy", "hpa", "--tune", "0.9")
    status, out, err = run(capsys, *flags, "--json", "--html", page)
    found = json.loads(out)
    assert 0 == status, err
    assert found["replica_hours"] == found["tuned"]["best"]["hours"]
    assert found["attainment"] >= 0.9
    assert "min-replicas" == found["floor"]["dial"]
    assert found["verdict"].startswith("hpa holds 90.00% with target ")
    assert "floor" in found["verdict"]
    assert "hpa holds 90.00% with target" in page.read_text()


def test_where_only_a_floor_holds_it_is_the_run_that_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A burst that ends before a replica is ready: no target helps, and a floor does."""
    rows = [*((float(n), 40) for n in range(60)), *((20 + n / 40, 40) for n in range(160))]
    file = tmp_path / "burst.csv"
    text = [f"{at},300,{output}" for at, output in sorted(rows)]
    file.write_text("\n".join(["arrival_s,prompt_tokens,output_tokens", *text]))
    flags = [each if each != "10" else "60" for each in _SMALL]
    status, out, err = run(capsys, "--trace", file, *flags, "--policy", "hpa", "--tune", "0.99", "--json")
    found = json.loads(out)
    assert found["tuned"]["best"] is None
    assert found["floor"]["best"]["value"] > 1
    assert "With this burstiness it takes a floor of" in found["verdict"]
    assert (0, found["floor"]["best"]["hours"]) == (status, found["replica_hours"]), err
    assert found["attainment"] >= 0.99


def test_a_search_that_finds_nothing_says_so(rising: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = [each if each != "12" else "1" for each in _SMALL]
    status, out, _ = run(capsys, "--trace", rising, *flags, "--policy", "static", "--tune", "0.99")
    assert 3 == status
    assert "No replicas of static from 1 to 1 holds 99.00%: the most was" in " ".join(out.split())


@pytest.mark.parametrize("policy", ["penstock", "penstock-slow", "penstock-fast", "ray", "dynamo", "wva"])
@pytest.mark.slow
def test_every_policy_has_a_dial(rising: Path, capsys: pytest.CaptureFixture[str], policy: str) -> None:
    # The imitations decide once in minutes, so they begin with enough.
    first = () if policy == "penstock-fast" else ("--replicas", "3")
    flags = ("--trace", rising, *_SMALL, "--limit", "600", "--policy", policy, "--tune", "0.5", "--json")
    status, out, err = run(capsys, *flags, *first)
    assert 0 == status, err
    assert json.loads(out)["tuned"]["best"]["attainment"] >= 0.5


def test_nodes_fail_and_are_slow(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def figures(*flags: str) -> dict[str, object]:
        status, out, err = run(capsys, "--trace", trace, "--policy", "static", "--replicas", "2", *flags, "--json")
        assert 0 == status, err
        return dict(json.loads(out))

    plain, slow, dying = figures(), figures("--slow", "1:4"), figures("--die", "5,8:2", "--cold-start", "2")
    assert [] == plain["notes"]
    assert plain["itl_s"]["mean"] < slow["itl_s"]["mean"]  # type: ignore[index]
    assert "1 replica at first with steps 4 times as long" in slow["notes"][0]  # type: ignore[index]
    assert plain["e2e_s"]["mean"] < dying["e2e_s"]["mean"]  # type: ignore[index]
    assert "3 replicas die" in dying["notes"][0]  # type: ignore[index]
    assert "scripts" in str(dying["queue"])
    assert plain["completed"] == slow["completed"] == dying["completed"] == 200


def test_only_nodes_that_were_there_fail_or_are_slow(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two replicas were told to die in a run that was over long before, and ten of two to be slow."""

    def note(*flags: str) -> str:
        status, out, err = run(capsys, "--trace", trace, "--policy", "static", "--replicas", "2", *flags, "--json")
        assert 0 == status, err
        return str(json.loads(out)["notes"][0])

    assert note("--die", "50000:2").startswith("0 replicas die, not all 2 that were asked for; ")
    assert note("--die", "5,50000").startswith("1 replica dies, not all 2 that were asked for; ")
    assert note("--die", "5:9").startswith("2 replicas die, not all 9 that were asked for; ")
    assert note("--slow", "10:2").startswith("2 replicas at first with steps 2 times as long; ")


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--slow", "2"), "--slow: must be a number of replicas and a factor such as 2:1.5, got '2'"),
        (("--slow", "0:2"), "--slow: must be a whole number of at least 1, got '0'"),
        (("--die", "-5"), "--die: "),
        (("--die", "5:0"), "--die: must be a whole number of at least 1, got '0'"),
    ],
)
def test_wrong_nodes_are_named(
    trace: Path, capsys: pytest.CaptureFixture[str], flags: tuple[str, ...], words: str
) -> None:
    status, out, err = run(capsys, "--trace", trace, *flags)
    assert (2, "") == (status, out)
    assert words in " ".join(err.split())
