"""Streams that are continued leave the way free for new requests."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest.mock import Mock

import pytest

from cluster.errors import UnavailableError
from penstock.v1 import inference_pb2 as api
from router.inference import servicer
from router.inference.servicer import InferenceServicer
from router.validation import RequestLimits


class Generations:
    """Notes what is opened, in order."""

    def __init__(self) -> None:
        self.draining = False
        self.opened: list[str] = []

    async def open(self, checked: Any, caller: object, time_left_s: object, resume: object) -> bytes:
        self.opened.append("new" if resume is None else "resume")
        raise UnavailableError("not in this test")


def request(*, resume: bool) -> api.StreamGenerateRequest:
    made = api.StreamGenerateRequest()
    made.generate.model, made.generate.prompt.text = "demo", "Hello"
    if resume:
        made.resume.resume_token = b"token"
    return made


async def call(service: InferenceServicer, *, resume: bool) -> None:
    context = Mock()
    context.time_remaining.return_value = None
    with pytest.raises(UnavailableError):
        await service.StreamGenerate(request(resume=resume), context, Mock())


async def test_a_new_request_passes_those_that_are_continued(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servicer, "RESUMED_PER_TURN", 2)
    generations = Generations()
    service = InferenceServicer({}, Mock(), generations, RequestLimits(1 << 20), Mock(), Mock(), room=Mock())  # type: ignore[arg-type]
    resumes = [asyncio.create_task(call(service, resume=True)) for _ in range(50)]
    fresh = asyncio.create_task(call(service, resume=False))
    await fresh
    assert 4 >= generations.opened.index("new")
    await asyncio.gather(*resumes)
    assert 50 == generations.opened.count("resume")
    assert 0 == service.open_calls
