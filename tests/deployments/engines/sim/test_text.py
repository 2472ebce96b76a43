from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from deployments.engines.sim.text import StopText, Vocabulary
from deployments.engines.tokenizer_files import of_folder


def feed(stop: list[str], pieces: list[str]) -> tuple[list[str], str]:
    text, released = StopText(stop), []
    for piece in pieces:
        text.add(piece, may_stop=True)
        released.append(text.release(ended=False))
        if text.match:
            return released, text.match
    released.append(text.release(ended=True))
    return released, ""


def test_what_could_begin_a_stop_string_is_held_back() -> None:
    assert feed(["END"], ["abE", "N", "x"]) == (["a", "b", "E", "Nx"], "")
    assert feed(["END"], ["abE", "N", "Dx"]) == (["a", "b", ""], "END")


def test_the_stop_string_that_is_complete_first_counts() -> None:
    assert feed(["xyz", "y"], ["axyz"])[1] == "y"


def test_of_stop_strings_complete_at_once_the_first_listed_counts() -> None:
    assert feed(["b", "ab"], ["xab"]) == (["xa"], "b")
    assert feed(["ab", "b"], ["xab"]) == (["x"], "ab")


def test_no_stop_strings_hold_nothing_back() -> None:
    assert feed([], ["a", "b"]) == (["a", "b", ""], "")


def test_minimum_of_tokens_comes_first() -> None:
    text = StopText(["b"])
    text.add("ab", may_stop=False)
    text.add("cb", may_stop=True)
    assert text.match == "b"
    assert text.release(ended=True) == "abc"


@given(st.lists(st.text("ab", max_size=3), max_size=12), st.lists(st.text("ab", min_size=1, max_size=3), max_size=3))
def test_released_text_is_the_text_before_the_first_stop(pieces: list[str], stop: list[str]) -> None:
    released, match = feed(stop, pieces)
    whole = "".join(pieces)
    ends = [(whole.find(each) + len(each), whole.find(each)) for each in stop if each in whole]
    if not ends:
        assert ("".join(released), match) == (whole, "")
        return
    # Pieces have several characters, so a later beginning can be complete in the same piece.
    assert match in stop
    assert whole.startswith("".join(released) + match)
    assert "".join(released) == whole[: whole.find(match, len("".join(released)))]


def test_without_a_tokenizer_tokens_read_as_bytes() -> None:
    vocabulary = Vocabulary({})
    decode = vocabulary.decoder()
    assert "".join(decode(token) for token in b"hello") == "hello"
    assert vocabulary.end_id is None


def test_natural_tokens_are_whole_characters_and_no_specials(tiny_tokenizer: Path) -> None:
    vocabulary = Vocabulary(of_folder(tiny_tokenizer))
    assert vocabulary.end_id == 1
    assert not {0, 1, 2} & set(vocabulary.natural_ids)
    for token in vocabulary.natural_ids:
        assert "\ufffd" not in vocabulary.decoder()(token)
