"""Penstock's gRPC API under load."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import grpc

from cluster.errors import SettingsError
from cluster.nearest import did_you_mean
from loadtest.load.driver.stream import StreamObservation, follow
from loadtest.load.driver.target import Target
from loadtest.load.driver.transport import LoadedModel, Observers, StreamFailedError
from loadtest.load.schedule.plan import PlannedRequest
from penstock.client import AsyncClient
from penstock.client.connection import Stubs
from penstock.models import RequestClass
from penstock.v1 import inference_pb2, types_pb2
from penstock.values.errors import from_rpc_error
from penstock.wire import duration_to_wire, request_class_to_wire

CONNECT_S = 15.0


class GrpcTransport:
    """Connections to routers, which take turns."""

    def __init__(self, target: Target, served: LoadedModel) -> None:
        """Open channels. They connect with `connect`.

        Raises:
            SettingsError: the target's parts don't fit together.
        """
        self.served = served
        self._target = target
        self._connection = connection = target.connection()
        tls = connection.tls
        self._channels = [
            grpc.aio.insecure_channel(router, options=connection.options)
            if tls is None
            else grpc.aio.secure_channel(router, tls.credentials(), options=connection.options)
            for router in connection.targets
        ]
        self._stubs = [Stubs(channel) for channel in self._channels]
        self._rotation = connection.rotation()

    @classmethod
    async def open(cls, target: Target) -> GrpcTransport:
        """Find the model, and open channels.

        Raises:
            SettingsError: the cluster does not serve it.
            PenstockClientError: no router answers.
        """
        connection = target.connection()
        async with AsyncClient(
            target.routers,
            tls=connection.tls,
            api_key=target.api_key or None,
            allow_plaintext_key=target.allow_plaintext_key,
            timeout=CONNECT_S,
        ) as client:
            models = {model.name: model for model in await client.list_models()}
        name = pick_model(target.model, list(models))
        model = models[name]
        return cls(target, LoadedModel(name, model.max_context_tokens, model.vocabulary_size))

    async def connect(self) -> None:
        async with asyncio.timeout(CONNECT_S):
            await asyncio.gather(*(channel.channel_ready() for channel in self._channels))

    async def send(
        self, planned: PlannedRequest, prompt: Sequence[int], output: int, seen: StreamObservation, observers: Observers
    ) -> None:
        stub = self._stubs[next(self._rotation)].inference
        call = stub.StreamGenerate(
            self._request(planned, prompt, output),
            timeout=self._target.timeout_s,
            metadata=self._connection.call_metadata(),
        )
        try:
            await follow(call, seen, observers.first, observers.gap)
        except grpc.RpcError as error:
            failure = from_rpc_error(error)
            raise StreamFailedError(failure.reason or failure.code.name, str(failure)) from error
        except asyncio.CancelledError:
            call.cancel()
            raise

    def _request(
        self, planned: PlannedRequest, prompt: Sequence[int], output: int
    ) -> inference_pb2.StreamGenerateRequest:
        made = inference_pb2.StreamGenerateRequest(
            generate=inference_pb2.GenerateRequest(
                model=self.served.name,
                prompt=types_pb2.Prompt(tokens=types_pb2.TokenPrompt(ids=prompt)),
                # The plan decides the length, not the model.
                sampling=types_pb2.SamplingParams(max_tokens=output, temperature=0.0, ignore_eos=True),
                request_class=request_class_to_wire(RequestClass(planned.request_class)),
                session_id=planned.session,
            )
        )
        if self._target.flush_s is not None:
            made.flush_interval.CopyFrom(duration_to_wire(self._target.flush_s))
        return made

    async def close(self) -> None:
        for channel in self._channels:
            await channel.close(None)


def pick_model(asked: str, served: Sequence[str]) -> str:
    """Return the name of the model to load; the only one that is served where none is asked for.

    Raises:
        SettingsError: it is not served, or several are.
    """
    if asked in served:
        return asked
    if asked or len(served) != 1:
        known = ", ".join(served) or "none that is served"
        raise SettingsError(f"model must be one of {known}, got {asked or 'none'}{did_you_mean(asked, served)}")
    return served[0]
