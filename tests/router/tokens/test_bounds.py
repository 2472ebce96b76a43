from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from router.tokens import Tokenizer
from router.tokens.bounds import LARGE_CHARACTERS, TRIM_CHARACTERS, EncodingBounds
from router.tokens.tokenizer import INLINE_CHARACTERS
from router.validation import ChatPrompt, Message, TextPrompt


def test_memory_goes_back_after_so_many_characters() -> None:
    trims: list[int] = []
    bounds = EncodingBounds(lambda: trims.append(1))
    for _ in range(7):
        assert "ids" == bounds.run(lambda: "ids", TRIM_CHARACTERS // 3)
    assert [1] == trims
    bounds.run(lambda: "ids", TRIM_CHARACTERS)
    assert [1, 1] == trims


def test_large_texts_are_encoded_one_at_a_time_and_others_beside_them() -> None:
    bounds = EncodingBounds(lambda: None)
    inside, most, beside = 0, 0, threading.Event()

    def large() -> None:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        # A small one passes meanwhile.
        assert beside.wait(20)
        inside -= 1

    with ThreadPoolExecutor(4) as threads:
        running = [threads.submit(bounds.run, large, LARGE_CHARACTERS) for _ in range(3)]
        threads.submit(bounds.run, beside.set, LARGE_CHARACTERS - 1).result(20)
        for each in running:
            each.result(20)
    assert 1 == most


def test_an_error_lets_the_next_one_in() -> None:
    bounds = EncodingBounds(lambda: None)

    def fails() -> None:
        raise ValueError("broken")

    for _ in range(2):
        with pytest.raises(ValueError, match="broken"):
            bounds.run(fails, LARGE_CHARACTERS)


async def test_nothing_is_given_back_on_the_event_loop(files: dict[str, bytes]) -> None:
    """That takes up to a tenth of a second, in which every stream would wait."""
    threads: list[threading.Thread] = []
    bounds = EncodingBounds(lambda: threads.append(threading.current_thread()))
    bounds.run(str, TRIM_CHARACTERS - 1)
    with ThreadPoolExecutor(1) as executor:
        tokenizer = Tokenizer(files, executor, bounds=bounds)
        short = "x" * INLINE_CHARACTERS
        await tokenizer.encode_prompt(TextPrompt(short))
        await tokenizer.encode_prompt(ChatPrompt((Message("user", short),)), 100_000)
        assert [] == threads
        await tokenizer.encode_prompt(TextPrompt(short + "x"))
    assert 1 == len(threads)
    assert threads[0] is not threading.current_thread()
