"""`penstock generate` against a router: several answers, deadlines, and the choice of a model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from cluster.cli.main import main
from tests.support.pictures import BLUE, picture
from tests.support.stack import Stack, running_stack, sim_pool
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")
Captured = pytest.CaptureFixture[str]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    pools = {"quick": sim_pool(), "slow": sim_pool(base_ms=200.0)}
    async with running_stack(tmp_path_factory.mktemp("state"), pools=pools) as running:
        yield running


async def generate(stack: Stack, *words: str) -> int:
    target = f"127.0.0.1:{stack.routers[0].port}"
    return await asyncio.to_thread(main, ["generate", "hi", "--target", target, *words])


async def test_several_answers_are_all_labelled(stack: Stack, capsys: Captured) -> None:
    assert 0 == await generate(stack, "--model", "quick", "--n", "3", "--max-tokens", "3", "--seed", "1")
    said = capsys.readouterr().out
    places = [said.index(label) for label in ("[0] ", "\n[1] ", "\n[2] ")]
    assert [0, *sorted(places[1:])] == places


async def test_one_answer_has_no_label(stack: Stack, capsys: Captured) -> None:
    assert 0 == await generate(stack, "--model", "quick", "--max-tokens", "3")
    assert not capsys.readouterr().out.startswith("[0]")


async def test_a_deadline_is_named(stack: Stack, capsys: Captured) -> None:
    words = ("--model", "slow", "--max-tokens", "2000", "--ignore-eos", "--timeout", "1.5")
    assert 1 == await generate(stack, *words)
    assert "1.5 s (--timeout)" in " ".join(capsys.readouterr().err.split())
    await until(lambda: not stack.routers[0].pools["slow"].active)


async def test_several_models_are_a_choice_and_a_wrong_name_gets_the_nearest(stack: Stack, capsys: Captured) -> None:
    assert 2 == await generate(stack)
    assert "penstock: choose a model with --model: quick, slow\n" == capsys.readouterr().err
    assert 1 == await generate(stack, "--model", "slwo")
    assert "known models: quick, slow; did you mean slow?" in " ".join(capsys.readouterr().err.split())


async def test_images_come_before_the_prompt_and_make_it_a_message(
    stack: Stack, capsys: Captured, tmp_path: Path
) -> None:
    (tmp_path / "red.png").write_bytes(picture())
    (tmp_path / "blue.jpg").write_bytes(picture(color=BLUE, kind="JPEG"))
    shared = ("--model", "quick", "--max-tokens", "8", "--temperature", "0")

    async def answer(*names: str) -> str:
        images = [word for name in names for word in ("--image", str(tmp_path / name))]
        assert 0 == await generate(stack, *shared, *images)
        return capsys.readouterr().out

    answers = [await answer(*names) for names in (("red.png",), ("blue.jpg",), ("red.png", "blue.jpg"), ())]
    assert len(answers) == len(set(answers))
    assert answers[0] == await answer("red.png")


async def test_an_image_that_cannot_be_read_is_named(stack: Stack, capsys: Captured, tmp_path: Path) -> None:
    assert 2 == await generate(stack, "--model", "quick", "--image", str(tmp_path / "none.png"))
    assert f"--image: {tmp_path / 'none.png'} cannot be read: " in "".join(capsys.readouterr().err.splitlines())
    (tmp_path / "text.png").write_bytes(b"Hi")
    assert 2 == await generate(stack, "--model", "quick", "--image", str(tmp_path / "text.png"))
    told = f"--image {tmp_path / 'text.png'}: the 2 bytes are no PNG, JPEG, WebP or GIF file"
    assert told.replace(" ", "") in "".join(capsys.readouterr().err.split())
