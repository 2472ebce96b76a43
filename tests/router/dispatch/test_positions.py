"""Which waiting choices a heartbeat asks positions for."""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import router.dispatch.positions
from cluster.queue.heartbeats import POSITIONS
from router.dispatch.positions import PER_TURN, Positions
from router.generation.choice_state import ChoiceState
from tests.support.stack import request, running_stack, sim_pool, stream_request
from tests.support.waiting import until


class Table(dict[str, Any]):
    """A `ChoiceTable` of whatever stands for choices."""

    def snapshot(self) -> list[Any]:
        return list(self.values())


def choice(name: str, position: int, state: ChoiceState = ChoiceState.WAITING, *, watched: bool = True) -> Any:
    wait = SimpleNamespace(position=position, watched=watched)
    made = SimpleNamespace(entry=SimpleNamespace(request_id=name), state=state, wait=wait)
    made.on_position = partial(setattr, wait, "position")
    return made


def line(length: int) -> Any:
    return Table({f"q{number}": choice(f"q{number}", number) for number in range(length)})


@pytest.fixture(autouse=True)
def every_heartbeat_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(router.dispatch.positions, "LEAST_S", 0.0)


def test_quick_heartbeats_do_not_all_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(router.dispatch.positions, "LEAST_S", 0.75)
    monkeypatch.setattr(router.dispatch.positions, "time", SimpleNamespace(monotonic=lambda: now))
    positions, asked = Positions(line(3)), []
    for _ in range(9):
        asked.append(len(positions.ask()))
        now += 0.25
    assert [3, 0, 0] * 3 == asked


def test_a_short_line_is_asked_for_whole_each_time() -> None:
    positions = Positions(line(POSITIONS))
    for _ in range(3):
        assert sorted(line(POSITIONS)) == sorted(positions.ask())


def test_in_a_long_line_the_first_are_asked_for_each_time_and_the_others_in_turn() -> None:
    choices = line(4 * POSITIONS)
    positions = Positions(choices)
    rounds = [positions.ask() for _ in range(8)]

    assert {POSITIONS} == {len(set(asked)) for asked in rounds}
    often = Counter(name for asked in rounds for name in asked)
    assert {f"q{number}" for number in range(POSITIONS // 2)} == {name for name, count in often.items() if count == 8}
    # Seven eighths of the line take turns in what is left: seven rounds, and it begins anew.
    assert set(choices) == set(often)


def test_who_comes_later_gets_a_turn_and_who_has_gone_is_forgotten() -> None:
    choices = line(2 * POSITIONS)
    positions = Positions(choices)
    positions.ask()
    choices["new"] = choice("new", 10_000)
    assert any("new" in positions.ask() for _ in range(3))
    del choices["new"]
    assert all("new" not in positions.ask() for _ in range(4))
    assert set(positions._asked) == set(choices)


def test_only_those_that_wait_and_whose_client_is_told_are_asked_for() -> None:
    choices: Any = Table(
        {
            "waits": choice("waits", 3),
            "runs": choice("runs", 0, ChoiceState.RUNNING),
            "ended": choice("ended", 0, ChoiceState.ENDED),
            "unary": choice("unary", 4, watched=False),
        }
    )
    positions = Positions(choices)
    assert ("waits",) == positions.ask()
    positions.heard({"waits": 1, "gone": 7})
    assert 1 == choices["waits"].wait.position


async def test_a_turn_of_the_loop_tells_a_few_clients() -> None:
    choices = line(3 * PER_TURN)
    positions = Positions(choices)
    told = {name: number + 1 for number, name in enumerate(choices)}
    positions.heard(told)
    assert PER_TURN == sum(choices[name].wait.position == position for name, position in told.items())
    positions.heard({"q0": 5})
    await until(lambda: told | {"q0": 5} == {name: each.wait.position for name, each in choices.items()})


async def test_a_client_that_can_not_be_told_holds_up_no_other(caplog: pytest.LogCaptureFixture) -> None:
    choices = line(3 * PER_TURN)
    broken = {"q1", f"q{PER_TURN + 1}"}
    for name in broken:
        choices[name].on_position = {}.__getitem__
    positions = Positions(choices)
    told = {name: number + 1 for number, name in enumerate(choices) if name not in broken}
    positions.heard(told | dict.fromkeys(broken, 3))
    await until(lambda: all(choices[name].wait.position == position for name, position in told.items()))
    positions.heard({"q0": 5, "q1": 6, "q2": 7})
    await until(lambda: [5, 7] == [choices[name].wait.position for name in ("q0", "q2")])
    assert ["positions.not_told"] * 3 == [record.message for record in caplog.records]


async def test_a_client_is_told_its_position_when_it_was_heard_and_only_then(
    tmp_path: Path, store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pools = {"demo": sim_pool(max_num_seqs=1, base_ms=2.0)}
    async with running_stack(tmp_path, redis_url=store_url, pools=pools) as stack:
        pool = stack.routers[0].pools["demo"]
        first = stack.inference().StreamGenerate(stream_request(max_tokens=30_000, ignore_eos=True))
        await until(lambda: pool.beat is not None and pool.beat.running == 1)
        ahead = stack.inference().StreamGenerate(stream_request(max_tokens=30_000, ignore_eos=True))
        assert 0 == (await ahead.read()).queued.position
        call = stack.inference().StreamGenerate(stream_request(max_tokens=30_000, ignore_eos=True))
        told = [(await call.read()).queued.position]
        ahead.cancel()
        while told[-1]:
            told.append((await call.read()).queued.position)
        assert {1} == set(told[:-1])
        # What the queue no longer says, the router does not repeat.
        monkeypatch.setattr(pool._positions, "heard", lambda _positions: None)
        for _ in range(3):
            beat = pool.beat
            await until(lambda: pool.beat is not beat)  # noqa: B023 - it waits before the next round
        first.cancel()
        after = [await call.read()]
        while not after[-1].HasField("started"):
            after.append(await call.read())
        assert len(after) <= 2, "one may have been on its way"
        call.cancel()


async def test_everybody_in_a_long_line_hears_that_it_moves(
    tmp_path: Path, store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(router.dispatch.positions, "POSITIONS", 4)
    pools = {"demo": sim_pool(max_num_seqs=1, base_ms=2.0)}
    async with running_stack(tmp_path, redis_url=store_url, pools=pools) as stack:
        pool = stack.routers[0].pools["demo"]
        first = stack.inference().StreamGenerate(stream_request(max_tokens=30_000, ignore_eos=True))
        await until(lambda: pool.beat is not None and pool.beat.running == 1)
        calls = []
        for _ in range(12):
            calls.append(stack.inference().StreamGenerate(stream_request(max_tokens=30_000, ignore_eos=True)))
            assert (await calls[-1].read()).HasField("queued")
        silent = asyncio.ensure_future(stack.inference().Generate(request(max_tokens=1, ignore_eos=True)))
        await until(lambda: len(pool.choices) == 14)
        waiting = [each for each in pool.choices.values() if each.state is ChoiceState.WAITING]
        await until(lambda: list(range(13)) == [each.wait.position for each in waiting])

        first.cancel()
        await until(lambda: [each.wait.position for each in waiting[1:12]] == list(range(11)))
        assert 12 == waiting[12].wait.position
        for call in calls:
            call.cancel()
        assert 1 == (await silent).usage.output_tokens
