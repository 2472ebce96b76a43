"""Log probabilities in the forms that clients of other servers read."""

from __future__ import annotations

from penstock.batch.logprobs import TextLogprobs, chat_logprobs, prompt_logprobs
from penstock.models import PositionLogprobs, TokenLogprob


def at(text: bytes, token_id: int = 1, logprob: float = -1.0, *top: TokenLogprob, rank: int = 0) -> PositionLogprobs:
    return PositionLogprobs(TokenLogprob(token_id, logprob, text), top, rank)


def test_tokens_and_offsets_are_those_of_the_text() -> None:
    text = "Grüße 🙂!"
    pieces = [b"Gr", b"\xc3", b"\xbc", "ße ".encode(), b"\xf0\x9f", b"\x99\x82", b"!"]
    whole = TextLogprobs().lists([at(piece) for piece in pieces])
    assert [0, 2, 2, 3, 6, 6, 7] == whole["text_offset"]
    assert ["Gr", "bytes:\\xc3", "bytes:\\xbc", "ße ", "bytes:\\xf0\\x9f", "bytes:\\x99\\x82", "!"] == whole["tokens"]
    ends = [*whole["text_offset"][1:], len(text)]
    assert text == "".join(text[begin:end] for begin, end in zip(whole["text_offset"], ends, strict=True))

    parts = TextLogprobs()
    split = [parts.lists([at(piece) for piece in some]) for some in (pieces[:2], pieces[2:5], pieces[5:])]
    for name, values in whole.items():
        assert values == [value for each in split for value in each[name]]


def test_characters_that_the_text_leaves_out_do_not_count() -> None:
    lists = TextLogprobs(leading=4).lists([at(b"<s>"), at(b" The"), at(b" end")], prompt=True)
    assert [0, 0, 3] == lists["text_offset"]
    assert [None, -1.0, -1.0] == lists["token_logprobs"]
    assert lists["top_logprobs"][0] is None


def test_the_chosen_token_is_always_among_the_alternatives() -> None:
    best, other = TokenLogprob(2, -0.1, b"x"), TokenLogprob(3, -0.7, b"y")
    [tops] = TextLogprobs().lists([at(b"z", 9, -4.0, best, other)])["top_logprobs"]
    assert {"x": -0.1, "y": -0.7, "z": -4.0} == tops
    # Two tokens may have one text.
    [tops] = TextLogprobs().lists([at(b"x", 9, -4.0, best)])["top_logprobs"]
    assert {"x": -0.1} == tops
    [tops] = TextLogprobs(as_ids=True).lists([at(b"x", 9, -4.0, best)])["top_logprobs"]
    assert {"token_id:2": -0.1, "token_id:9": -4.0} == tops


def test_a_token_without_a_text_has_its_id() -> None:
    found = chat_logprobs([at(b"", 7)])
    assert found is not None
    assert {"token": "token_id:7", "logprob": -1.0, "bytes": None, "top_logprobs": []} == found["content"][0]
    assert ["token_id:7"] == TextLogprobs().lists([at(b"", 7)])["tokens"]
    by_id = chat_logprobs([at(b"x", 7)], as_ids=True)
    assert by_id is not None
    assert ("token_id:7", [120]) == (by_id["content"][0]["token"], by_id["content"][0]["bytes"])


def test_a_prompt_has_the_token_itself_first_with_its_rank() -> None:
    best = TokenLogprob(2, -0.1, b"x")
    found = prompt_logprobs([at(b"a", 4, -9999.0), at(b"z", 9, -4.0, best, rank=30), at(b"x", 2, -0.1, best, rank=1)])
    first, second = {"logprob": -4.0, "rank": 30, "decoded_token": "z"}, {
        "logprob": -0.1, "rank": 1, "decoded_token": "x",
    }  # fmt: skip
    assert [None, {"9": first, "2": second}, {"2": second}] == found
    assert found[1] is not None
    assert ["9", "2"] == list(found[1])
