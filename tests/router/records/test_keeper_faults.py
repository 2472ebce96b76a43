"""A record that cannot be made is left out, and the next ones are stored."""

from __future__ import annotations

from pathlib import Path

import pytest

import router.records.keeper
from penstock.v1 import records_pb2
from router.generation.generation import Generation
from router.records.build import Closed, record_of
from tests.support.stack import request, running_stack
from tests.support.waiting import until


async def test_a_record_that_cannot_be_made_keeps_no_other_from_being_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = list[str]()

    def first_fails(generation: Generation, closed: Closed) -> records_pb2.RequestRecord:
        made.append(generation.request_id)
        if len(made) == 1:
            raise ValueError("a bug")
        return record_of(generation, closed)

    monkeypatch.setattr(router.records.keeper, "record_of", first_fails)
    async with running_stack(tmp_path) as stack:
        keeper = stack.routers[0]._parts.records
        for _ in range(2):
            await stack.inference().Generate(request(max_tokens=2), timeout=30)
        await until(lambda: len(made) == 2)
        await until(lambda: keeper.store("demo").get(made[1]))
        assert 1 == keeper.dropped
        assert b"" == await keeper.store("demo").get(made[0])
