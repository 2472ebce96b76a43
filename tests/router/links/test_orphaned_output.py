"""Attempts whose output nobody takes are stopped."""

from __future__ import annotations

from pathlib import Path

from router.links.orphaned_output import OrphanedOutput
from tests.router.links.parts import read_until
from tests.support.stack import running_stack, stream_request
from tests.support.waiting import until


def test_only_output_that_goes_on_for_longer_than_a_takeover_is_orphaned_once() -> None:
    orphans = OrphanedOutput(5.0)
    assert not orphans.seen("r1", 1, 0.0)
    assert not orphans.seen("r1", 1, 4.9)
    assert not orphans.seen("r2", 1, 4.9)
    assert orphans.seen("r1", 1, 5.0)
    assert not orphans.seen("r1", 1, 50.0)
    assert orphans.aborted == 1
    orphans.forget("r1")
    assert not orphans.seen("r1", 1, 60.0)


def test_nothing_is_left_of_attempts_and_replicas_that_are_over() -> None:
    orphans = OrphanedOutput(5.0)
    for replica, sink in (("r1", 1), ("r1", 2), ("r2", 1)):
        orphans.seen(replica, sink, 0.0)
    orphans.over("r1", 2)
    orphans.over("r3", 1)
    assert 2 == len(orphans)
    assert orphans.seen("r1", 1, 5.0)
    orphans.forget("r1")
    assert 1 == len(orphans)


async def test_an_attempt_that_runs_for_nobody_is_stopped(tmp_path: Path) -> None:
    async with running_stack(tmp_path, queue={"attach_grace_s": 0.3}, sim={"base_ms": 5.0}) as stack:
        call = stack.inference().StreamGenerate(stream_request(max_tokens=20_000, ignore_eos=True))
        await read_until(call, 3)
        pool = stack.routers[0].pools["demo"]
        link = pool.replicas.link(stack.replicas[0].plan.replica_id)
        assert link is not None
        # As a bug would: the receiver is gone, and nobody said so.
        [sink] = link._sinks.open
        link.close_sink(sink, acknowledge=False)

        await until(lambda: stack.replicas[0].table.sequences == 0)
        assert pool.replicas.orphaned_output.aborted == 1
        await until(lambda: not len(pool.replicas.orphaned_output))
        call.cancel()
