"""A router that has never seen a replica of the pool refuses its requests, and says that they came."""

from __future__ import annotations

from dataclasses import astuple
from pathlib import Path

import grpc
import pytest

from cluster.autoscaler.router_report import unpack_report
from penstock.models import RequestClass
from penstock.v1 import types_pb2 as types
from router.tokens.guess import likely_tokens
from router.validation import ChatPrompt, Message, TextPrompt, TokenPrompt
from tests.support.stack import request, running_stack


async def test_what_is_refused_counts_as_demand(tmp_path: Path) -> None:
    """Else a pool that has no replica would never get one."""
    async with running_stack(tmp_path, replicas=0) as stack:
        asked = request("x" * 400, max_tokens=16, n=2)
        asked.request_class = types.REQUEST_CLASS_INTERACTIVE
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stack.inference().Generate(asked)

        assert grpc.StatusCode.UNAVAILABLE is caught.value.code()
        report = unpack_report(stack.routers[0].pools["demo"].admission.demand.report())
        assert (2, 200, 0, 32, 0, 0) == astuple(report.counts[RequestClass.INTERACTIVE])


def test_a_prompts_length_is_guessed_from_its_bytes() -> None:
    assert 100 == likely_tokens(TextPrompt("x" * 400))
    assert 50 == likely_tokens(ChatPrompt((Message("user", "ü" * 50), Message("user", "x" * 100))))
    assert 3 == likely_tokens(TokenPrompt((1, 2, 3)))
    assert 1 == likely_tokens(TextPrompt(""))
