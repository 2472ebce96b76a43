"""A small web service before a cluster: POST /chat streams the answer as server-sent events.

Usage: uvicorn bridge:app --port 8080
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from pydantic import BaseModel, Field

from penstock import AsyncClient, AsyncStream, Delta, Event, Finished, Message, PenstockClientError, Sampling

TARGET = os.environ.get("PENSTOCK_TARGET", "127.0.0.1:50051")
API_KEY = os.environ.get("PENSTOCK_API_KEY")
HTTP_STATUS = {
    grpc.StatusCode.INVALID_ARGUMENT: 400,
    grpc.StatusCode.UNAUTHENTICATED: 401,
    grpc.StatusCode.PERMISSION_DENIED: 403,
    grpc.StatusCode.NOT_FOUND: 404,
    grpc.StatusCode.RESOURCE_EXHAUSTED: 429,
    grpc.StatusCode.UNAVAILABLE: 503,
    grpc.StatusCode.DEADLINE_EXCEEDED: 504,
}


class Turn(BaseModel):
    """One message."""

    role: str
    content: str


class Chat(BaseModel):
    """Body of a request."""

    messages: list[Turn] = Field(min_length=1)
    model: str = "demo"
    max_tokens: int = 256


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Keep one client, and so one connection, as long as the service runs."""
    async with AsyncClient(TARGET, api_key=API_KEY) as client:
        app.state.client = client
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/chat")
async def chat(body: Chat, request: Request) -> StreamingResponse:
    """Stream the answer."""
    messages = [Message(turn.role, turn.content) for turn in body.messages]
    stream = request.app.state.client.stream(body.model, messages, Sampling(max_tokens=body.max_tokens))
    # The first event shows that the request is accepted. Until then an error can still be the HTTP status.
    first = await anext(stream)
    return StreamingResponse(events(first, stream), media_type="text/event-stream")


@app.exception_handler(PenstockClientError)
async def refused(_request: Request, error: PenstockClientError) -> Response:
    """Answer with the error's status, and with the time to come back if it has one."""
    headers = {} if error.retry_after is None else {"retry-after": str(int(error.retry_after) + 1)}
    return JSONResponse(described(error), HTTP_STATUS.get(error.code, 500), headers)


async def events(first: Event, stream: AsyncStream) -> AsyncIterator[str]:
    """Yield server-sent events. A browser that goes away ends this, which cancels the request."""
    async with stream:
        try:
            event: Event | None = first
            while event is not None:
                if isinstance(event, Delta):
                    yield sent("delta", {"text": event.text})
                elif isinstance(event, Finished):
                    reason = event.choices[0].finish_reason
                    yield sent("finished", {"reason": reason, "tokens": event.usage.output_tokens})
                event = await anext(stream, None)
        except PenstockClientError as error:
            yield sent("error", described(error))


def sent(name: str, data: object) -> str:
    """Return one server-sent event."""
    return f"event: {name}\ndata: {json.dumps(data)}\n\n"


def described(error: PenstockClientError) -> dict[str, str]:
    """Return what callers of this service learn of an error."""
    return {"reason": error.reason or error.code.name, "message": str(error)}
