"""Flags of the parts of a cluster, what they refuse, and what the result says of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.loadtest.simulate.test_command import run

PLAIN = "arrival_s,prompt_tokens,output_tokens\n" + "".join(f"{n / 4},{300 + n},9\n" for n in range(60))


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    path = tmp_path / "plain.csv"
    path.write_text(PLAIN)
    return path


@pytest.fixture
def talks(tmp_path: Path) -> Path:
    path = tmp_path / "talks.jsonl"
    lines = [
        {"timestamp": 500 * n, "input_length": 1100, "output_length": 5, "hash_ids": [0, n % 7, 100 + n]}
        for n in range(60)
    ]
    path.write_text("\n".join(map(json.dumps, lines)))
    return path


SMALL = ("--policy", "static", "--kv-tokens", "2048", "--max-model-len", "2048", "--max-num-batched-tokens", "512")


def test_json_tells_hits_by_tier_and_what_is_not_measured(talks: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "--trace", talks, *SMALL, "--cpu-cache", "1000000:10:1", "--json")
    found = json.loads(out)
    cache = found["parts"]["prefix_cache"]
    assert {"cpu", "gpu"} == cache["hit_by_tier"].keys()
    assert 0 < cache["hit"] <= cache["reuse_in_trace"] < 1
    assert cache["loads"] > 0
    assert any("not held to any measurement" in note or "neither is held" in note for note in found["notes"])


def test_without_such_flags_the_result_says_nothing_of_parts(talks: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "--trace", talks, *SMALL, "--json")
    assert ("parts" in json.loads(out), json.loads(out)["notes"]) == (False, [])


def test_the_table_has_the_hits_in_words(plain: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "--trace", plain, "--policy", "static", "--shared-prefix", "256:1:2")
    words = " ".join(out.split())
    assert "of the prompt tokens found (GPU" in words
    assert "2 beginnings of 256 tokens before 100% of the longer prompts is an assumption about the load" in words


def test_json_tells_the_tokens_per_step(plain: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("--draft-tokens", "2", "--acceptance", "0.5", "--draft-ms", "1", "--policy", "penstock")
    _, out, _ = run(capsys, "--trace", plain, *flags, "--json")
    found = json.loads(out)
    assert 1.75 == found["parts"]["speculation"]["expected_tokens_per_step"]
    assert any("Speculation: drafts of 2 tokens" in note for note in found["notes"])


def test_json_tells_the_work_of_prefill_replicas(plain: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("--prefill-decode", "1:2", "--replicas", "3", "--kv-link", "25:1", "--policy", "static")
    _, out, _ = run(capsys, "--trace", plain, *flags, "--json")
    found = json.loads(out)
    split = found["parts"]["disaggregation"]
    assert (1, 2, 60) == (split["prefill_replicas"], split["decode_replicas"], split["transfers"])
    assert pytest.approx(3 * found["virtual_s"] / 3600) == found["replica_hours"]
    assert any("Transfer time from bandwidth, not held to any measurement" in note for note in found["notes"])


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--cpu-cache", "0"), "--cpu-cache: must be a whole number of at least 1, got '0'"),
        (("--cpu-cache", "100:0"), "--cpu-cache: must be a number above 0, got '0'"),
        (("--disk-cache", "100:5:-1"), "--disk-cache: must be a number of at least 0, got '-1'"),
        (("--disk-cache", "100:5:1:1"), "--disk-cache: must be tokens, GB/s and milliseconds such as 2000000:25:0.5"),
        (("--cpu-cache", "100:"), "--cpu-cache: must be tokens, GB/s and milliseconds such as 2000000:25:0.5, got"),
        (("--cpu-cache", "1000"), "cpu-cache has no effect on a trace that does not tell which prompts begin alike"),
        (("--affinity",), "affinity has no effect on a trace that does not tell which prompts begin alike"),
        (
            ("--no-prefix-cache",),
            "no-prefix-cache has no effect on a trace that does not tell which prompts begin alike",
        ),
        (("--draft-tokens", "17"), "--draft-tokens: must be a whole number of at most 16, got '17'"),
        (("--draft-tokens", "3"), "acceptance must be given with draft-tokens, got draft-tokens = 3 alone"),
        (("--draft-tokens", "3", "--acceptance", "1.1"), "--acceptance: must be a number of at most 1, got '1.1'"),
        (("--acceptance", "0.5"), "acceptance is for draft-tokens: nothing is drafted, got 0.5"),
        (("--verify-us", "5"), "verify-us is for draft-tokens: nothing is drafted, got 5"),
        (
            ("--draft-tokens", "3", "--acceptance", "0.5", "--max-num-batched-tokens", "200"),
            "max-num-batched-tokens must be at least 256, a token and 3 draft tokens for each of max-num-seqs = 64",
        ),
        (
            ("--kv-bytes", "1000"),
            "kv-bytes is for cpu-cache, disk-cache and prefill-decode: nothing else moves, got 1000",
        ),
        (("--prefill-decode", "1"), "--prefill-decode: must be two whole numbers such as 1:3, got '1'"),
        (("--prefill-decode", "0:1"), "--prefill-decode: must be a whole number of at least 1, got '0'"),
        (("--prefill-decode", "1:1"), "replicas must be a multiple of 2 with prefill-decode = 1:1, got 1"),
        (("--prefill-decode", "1:2", "--replicas", "4"), "replicas must be a multiple of 3 with prefill-decode = 1:2"),
        (
            ("--prefill-decode", "1:1", "--replicas", "2", "--policy", "hpa"),
            "policy must be static or penstock-fast with prefill-decode = 1:1, got hpa",
        ),
        (
            ("--prefill-decode", "1:1", "--replicas", "2", "--affinity"),
            "affinity does not go together with prefill-decode = 1:1",
        ),
        (("--kv-link", "0"), "--kv-link: must be a number above 0, got '0'"),
        (("--kv-link", "5:-1"), "--kv-link: must be a number of at least 0, got '-1'"),
        (("--kv-link", "5"), "kv-link is for prefill-decode: no KV cache is sent, got 5"),
        (("--kv-bytes", "0"), "--kv-bytes: must be a whole number of at least 1, got '0'"),
        (("--shared-prefix", "0"), "--shared-prefix: must be a whole number of at least 1, got '0'"),
        (("--shared-prefix", "64:2"), "--shared-prefix: must have a part above 0 of at most 1, got '2'"),
        (("--shared-prefix", "64:1:0"), "--shared-prefix: must be a whole number of at least 1, got '0'"),
        (("--shared-prefix", "9"), "shared-prefix must be at least one block of 16 tokens, got 9"),
        (("--shared-prefix", "999"), "shared-prefix must be shorter than the trace's longest prompt"),
        (
            ("--shared-prefix", "64", "--no-prefix-cache"),
            "shared-prefix does not go together with no-prefix-cache, got 64",
        ),
        (("--cpu-cache", "99", "--no-prefix-cache"), "cpu-cache does not go together with no-prefix-cache, got 99"),
        (
            ("--shared-prefix", "64", "--cpu-cache", "15"),
            "cpu-cache must be at least one block of the trace, 16 tokens, got 15",
        ),
    ],
)
def test_flags_out_of_range_or_without_effect_are_refused(
    plain: Path, capsys: pytest.CaptureFixture[str], flags: tuple[str, ...], words: str
) -> None:
    status, out, err = run(capsys, "--trace", plain, "--policy", "static", *flags)
    assert (2, "") == (status, out)
    assert words in " ".join(err.split())


def test_a_made_up_beginning_has_no_effect_where_the_trace_tells(
    talks: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, _, err = run(capsys, "--trace", talks, *SMALL, "--shared-prefix", "512")
    assert status == 2
    assert "shared-prefix has no effect on a trace that tells which prompts begin alike" in " ".join(err.split())
