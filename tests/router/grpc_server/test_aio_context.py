"""Services see the calls of both servers alike."""

from __future__ import annotations

from typing import Any
from unittest.mock import AsyncMock, Mock

import grpc
import pytest

from penstock.v1 import inference_pb2 as api
from router.call_context import ClientGoneError
from router.grpc_server import Call, call_context
from router.grpc_server.call import CallEndedError


async def test_a_write_to_a_client_that_is_gone_ends_alike_on_both_servers() -> None:
    ended: Any = Mock(write=AsyncMock(side_effect=grpc.aio.InternalError("the call has ended")))
    with pytest.raises(ClientGoneError, match="the call has ended"):
        await call_context(ended).write(api.StreamGenerateResponse())
    # What services catch, and what handlers of grpc.aio catch.
    assert issubclass(CallEndedError, ClientGoneError)
    assert issubclass(CallEndedError, grpc.aio.InternalError)


async def test_other_errors_of_a_write_stay_what_they_are() -> None:
    broken: Any = Mock(write=AsyncMock(side_effect=ValueError("does not serialize")))
    with pytest.raises(ValueError, match="does not serialize"):
        await call_context(broken).write(api.StreamGenerateResponse())


def test_only_the_direct_server_has_writes_that_leave_at_once() -> None:
    own = Call.__new__(Call)
    assert call_context(own) is own
    assert own is own.direct
    assert call_context(Mock()).direct is None
