from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from cluster.errors import SettingsError, TraceError
from loadtest.traces import TraceRequest, read_trace, scale_rate, with_class
from penstock.models import RequestClass

AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n"
)
BURST = (
    "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    "5,ChatGPT,472,18,490,Conversation log\n45,ChatGPT,1087,0,1087,Conversation log\n50.5,GPT-4,10,20,30,API log\n"
)
MOONCAKE = '{"timestamp": 3000, "input_length": 700, "output_length": 5, "hash_ids": [7, 9]}\n'
PLAIN = "arrival_s,prompt_tokens,output_tokens,class,tenant\n2.5,10,20,batch,acme\n1,30,40,,\n"
PLAIN_JSON = '{"arrival_s": 0, "prompt_tokens": 10, "output_tokens": 20, "class": "INTERACTIVE"}\n\n'


def read(tmp_path: Path, text: str, limit: int | None = None) -> list[TraceRequest]:
    path = tmp_path / "trace"
    path.write_text(text, encoding="utf-8")
    return read_trace(path, limit)


def lengths(trace: list[TraceRequest]) -> list[tuple[float, int, int]]:
    return [(round(each.arrival_s, 6), each.prompt_tokens, each.output_tokens) for each in trace]


def test_azure(tmp_path: Path) -> None:
    assert [(0.0, 374, 44), (4.314579, 396, 109)] == lengths(read(tmp_path, AZURE))


def test_azure_with_an_offset_and_windows_line_ends(tmp_path: Path) -> None:
    lines = [*AZURE.splitlines()[:1], "2024-05-10 00:00:00.5+00:00,1,2", "2024-05-10 00:00:01+00:00,3,4"]
    assert [(0.0, 1, 2), (0.5, 3, 4)] == lengths(read(tmp_path, "\r\n".join(lines) + "\r\n"))


def test_burst_gpt_without_what_failed(tmp_path: Path) -> None:
    assert [(0.0, 472, 18), (45.5, 10, 20)] == lengths(read(tmp_path, BURST))


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        (AZURE.replace("374", "0"), [(0.0, 396, 109)]),
        (AZURE.replace(",109", ",0"), [(0.0, 374, 44)]),
        (BURST.replace("472", "0"), [(0.0, 10, 20)]),
        (MOONCAKE.replace("700", "0") + MOONCAKE, [(0.0, 700, 5)]),
        (MOONCAKE + MOONCAKE.replace(": 5", ": 0"), [(0.0, 700, 5)]),
        (PLAIN.replace("30", "0"), [(0.0, 10, 20)]),
        (PLAIN.replace("40", "0"), [(0.0, 10, 20)]),
        (PLAIN_JSON.replace("10", "0") + PLAIN_JSON, [(0.0, 10, 20)]),
    ],
)
def test_lines_without_tokens_are_left_out_of_every_format_and_told(
    tmp_path: Path, text: str, kept: list[tuple[float, int, int]]
) -> None:
    (tmp_path / "trace").write_text(text)
    told: list[str] = []
    assert kept == lengths(read_trace(tmp_path / "trace", tell=told.append))
    (line,) = told
    assert "lines have no prompt or no output tokens and are left out" in line
    assert str(tmp_path) in line


def test_nothing_is_told_where_nothing_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "trace").write_text(AZURE)
    told: list[str] = []
    read_trace(tmp_path / "trace", tell=told.append)
    assert [] == told


def test_blank_lines_are_no_header(tmp_path: Path) -> None:
    assert [(0.0, 374, 44), (4.314579, 396, 109)] == lengths(read(tmp_path, "\n  \n" + AZURE + " \n"))


def test_mooncake_with_its_shared_beginnings(tmp_path: Path) -> None:
    (request,) = read(tmp_path, MOONCAKE)
    assert ((7,), 512, "s9") == (tuple(request.full_blocks), request.block_tokens, request.session)
    assert [7] * 512 + [9] * 188 == request.token_ids()


def test_plain_csv_in_any_order_with_class_and_tenant(tmp_path: Path) -> None:
    trace = read(tmp_path, PLAIN)
    assert [(0.0, 30, 40), (1.5, 10, 20)] == lengths(trace)
    assert [None, RequestClass.BATCH] == [each.request_class for each in trace]
    assert ["", "acme"] == [each.tenant for each in trace]
    assert [0, 1] == [each.number for each in trace]


def test_plain_json_lines(tmp_path: Path) -> None:
    (request,) = read(tmp_path, PLAIN_JSON)
    assert RequestClass.INTERACTIVE is request.request_class


def test_a_limit_keeps_the_earliest(tmp_path: Path) -> None:
    assert [(0.0, 30, 40)] == lengths(read(tmp_path, PLAIN, limit=1))


def test_a_rate_is_scaled_and_a_class_given_to_those_without(tmp_path: Path) -> None:
    trace = with_class(scale_rate(read(tmp_path, PLAIN), 3.0), RequestClass.STANDARD)
    assert [0.0, 0.5] == [each.arrival_s for each in trace]
    assert [RequestClass.STANDARD, RequestClass.BATCH] == [each.request_class for each in trace]


@pytest.mark.parametrize(
    ("text", "line", "field", "words"),
    [
        ("", 0, "", "has no requests"),
        ("arrival_s,prompt_tokens,output_tokens\n", 0, "", "has no requests"),
        ("when,what\n1,2\n", 2, "", "its fields: what, when; known: azure (ContextTokens"),
        (AZURE.replace("396", "many"), 3, "ContextTokens", "a whole number of at least 0, got 'many'"),
        (AZURE.replace("18:15:50", "25:15:50"), 3, "TIMESTAMP", "must be a time such as"),
        (AZURE + "2023-11-16 18:15:51,1\n", 4, "", "must have 3 fields like the header, got 2"),
        (BURST.replace("472", "-1"), 2, "Request tokens", "at least 0, got '-1'"),
        (BURST.replace("50.5", "nan"), 4, "Timestamp", "must be a number of at least 0, got 'nan'"),
        (MOONCAKE + MOONCAKE.replace("[7, 9]", "[7]"), 2, "hash_ids", "1 block of 512 tokens is less than 700"),
        (MOONCAKE + MOONCAKE.replace("[7, 9]", '"7"'), 2, "hash_ids", "must be a list of whole numbers"),
        (MOONCAKE + '{"timestamp": 1}\n', 2, "", "is missing"),
        (MOONCAKE + "{\n", 2, "", "is no JSON"),
        (MOONCAKE + "[1]\n", 2, "", "must be one JSON object per line"),
        (PLAIN.replace("batch", "urgent"), 2, "class", "must be one of interactive, standard, batch, got 'urgent'"),
        (PLAIN.replace("2.5,10", "2.5,1.5"), 2, "prompt_tokens", "must be a whole number of at least 0, got '1.5'"),
        (PLAIN_JSON.replace("10,", "true,"), 1, "prompt_tokens", "got True"),
        (PLAIN.replace("2.5", "inf"), 2, "arrival_s", "got 'inf'"),
        (PLAIN.replace("2.5,10", "2.5,-10"), 2, "prompt_tokens", "must be a whole number of at least 0, got '-10'"),
        (PLAIN_JSON.replace(": 10,", f": {'9' * 400},"), 1, "prompt_tokens", "must be a whole number"),
        (PLAIN.replace("2.5,10", "2.5,1e19"), 2, "prompt_tokens", "must be at most 1000000000, got '1e19'"),
        (MOONCAKE.replace(": 700", ": 9000000000"), 1, "input_length", "must be at most 1000000000, got 9000000000"),
        (PLAIN_JSON.replace(": 0,", f": {'9' * 400},"), 1, "arrival_s", "must be a number of at least 0, got 999"),
        ("\n" + PLAIN.replace("10", "x"), 3, "prompt_tokens", "got 'x'"),
        (BURST.replace("18", "0").replace("20", "0"), 0, "", "has no requests: 3 of 3 lines have no prompt or no"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, line: int, field: str, words: str) -> None:
    with pytest.raises(TraceError) as caught:
        read(tmp_path, text)
    assert words in str(caught.value)
    assert line == caught.value.line
    if field:
        assert field == caught.value.field
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize("text", [AZURE, PLAIN_JSON])
def test_a_pipe_is_read_as_a_file_is(tmp_path: Path, text: str) -> None:
    reader, writer = os.pipe()
    os.write(writer, text.encode())
    os.close(writer)
    try:
        assert lengths(read(tmp_path, text)) == lengths(read_trace(Path(f"/dev/fd/{reader}")))
    finally:
        os.close(reader)


def test_a_missing_file_and_one_of_bytes_are_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="nothing: No such file"):
        read_trace(tmp_path / "nothing")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00a,b\n")
    with pytest.raises(TraceError, match="is not text in UTF-8"):
        read_trace(tmp_path / "bytes")


def test_a_trace_of_many_lines_reports_the_right_one(tmp_path: Path) -> None:
    lines = [json.dumps({"arrival_s": n, "prompt_tokens": 1, "output_tokens": n % 700 or -1}) for n in range(1, 701)]
    with pytest.raises(TraceError) as caught:
        read(tmp_path, "\n".join(lines))
    assert (700, "output_tokens") == (caught.value.line, caught.value.field)


def test_a_column_that_comes_twice_is_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"trace: line 1: output_tokens: is in the header more than once"):
        read(tmp_path, "arrival_s,prompt_tokens,output_tokens,output_tokens\n0,10,20,30\n")
    assert [(0.0, 10, 20)] == lengths(read(tmp_path, "arrival_s,prompt_tokens,output_tokens,,\n0,10,20,,\n"))


def test_times_that_are_years_apart_are_no_trace(tmp_path: Path) -> None:
    text = "arrival_s,prompt_tokens,output_tokens\n0,10,20\n1,10,20\n1700000000,10,20\n"
    with pytest.raises(
        TraceError, match=r"must last 315576000 s \(10 years\) at most, got arrivals from 0 to 1.7e\+09 s"
    ):
        read(tmp_path, text)
    assert 2 == len(read(tmp_path, text, limit=2))


def test_a_trace_that_is_scaled_to_centuries_is_none(tmp_path: Path) -> None:
    """Each of their seconds would be simulated."""
    with pytest.raises(SettingsError, match=r"scale-rate must leave the trace 315576000 s \(10 years\) at most, got"):
        scale_rate(read(tmp_path, PLAIN), 1e-10)
