"""What a link tells its receivers, and receivers that fail at it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cluster.trust.tls import LinkDialer
from penstock.internal.v1 import replica_pb2 as pb
from router.generation.choice import Choice
from router.links.link import ReplicaLink
from router.links.orphaned_output import OrphanedOutput
from router.links.safeguards import LinkSafeguards
from tests.router.links.parts import LONG, golden, read_until
from tests.support.stack import SECRET, collect, ids_of, running_stack, stream_request
from tests.support.waiting import until


class Broken:
    """A receiver that fails at one kind of news."""

    def __init__(self, fails_at: str) -> None:
        self.told: list[str] = []
        self._fails_at = fails_at

    def __getattr__(self, name: str) -> Callable[..., None]:
        def take(*_: object) -> None:
            self.told.append(name)
            if name == self._fails_at:
                raise RuntimeError("a bug")

        return take


def bare_link() -> ReplicaLink:
    """Make a link that is not connected."""
    return ReplicaLink(
        "demo-r0",
        "127.0.0.1:1",
        "router",
        SECRET,
        LinkDialer(None),
        ping_s=1.0,
        attach_grace_s=1.0,
        on_change=lambda: None,
        safeguards=LinkSafeguards(OrphanedOutput(1.0)),
    )


async def test_output_that_cannot_be_taken_disturbs_no_other_stream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_stack(tmp_path, sim={"base_ms": 5.0}) as stack:
        expected = await golden(stack, **LONG)
        pool = stack.routers[0].pools["demo"]
        hurt = stack.inference().StreamGenerate(stream_request(**LONG))
        events = await read_until(hurt, 20)
        [choice] = pool.choices.values()
        other = stack.inference().StreamGenerate(stream_request(**LONG))
        await read_until(other, 5)
        failures = []
        take = Choice.on_delta

        def broken(one: Choice, *news: Any) -> None:
            if one is choice and not failures:
                failures.append(choice.attempt)
                raise RuntimeError("a bug")
            take(one, *news)

        monkeypatch.setattr(Choice, "on_delta", broken)
        events.extend(await collect(hurt))
        assert 1 == len(failures)
        assert expected == ids_of(events)
        assert 2 == len(events[-1].finished.receipt.attempts)
        end = (await collect(other))[-1].finished
        assert 1 == len(end.receipt.attempts)
        await until(lambda: stack.replicas[0].table.sequences == 0)


@pytest.mark.parametrize("news", ["on_end", "on_refused", "on_detached", "on_history"])
async def test_news_that_cannot_be_taken_leaves_the_link_up_and_ends_its_own_receiver(news: str) -> None:
    link, broken, other = bare_link(), Broken(news), Broken("")
    sinks = [link.open_sink(each, "r", str(number), 1, deadline=1.0) for number, each in enumerate((broken, other))]
    frame = pb.LinkResponse()
    for sink in sinks:
        match news:
            case "on_end":
                frame.ends.add(sink=sink)
            case "on_refused":
                frame.refusals.add(sink=sink)
            case "on_detached":
                frame.detached.append(sink)
            case _:
                frame.histories.add(sink=sink)
    link._deliver(frame)

    assert [news, "on_lost"] == broken.told
    assert [news] == other.told
    await link.close()


async def test_every_receiver_hears_that_its_link_is_lost() -> None:
    link, broken, other = bare_link(), Broken("on_lost"), Broken("")
    for number, each in enumerate((broken, other)):
        link.open_sink(each, "r", str(number))
    await link.close()

    assert ["on_lost"] == other.told
