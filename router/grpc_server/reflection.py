"""The reflection service under both of its names: `grpc.reflection.v1` and the older `grpc.reflection.v1alpha`.

The library has the older one only. Messages of both have the same fields, so one implementation serves both.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import grpc
from google.protobuf import descriptor_pool, json_format
from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc_reflection.v1alpha import reflection, reflection_pb2

_ALPHA_PACKAGE: str = reflection_pb2.DESCRIPTOR.package
_PACKAGE = "grpc.reflection.v1"
_FILE = "grpc/reflection/v1/reflection.proto"
_SERVICE = "ServerReflection"
_METHOD = "ServerReflectionInfo"


def reflection_handlers(service_names: Iterable[str]) -> tuple[grpc.GenericRpcHandler[Any, Any], ...]:
    """Build the handlers of a server with these services; they describe the reflection services too."""
    _describe()
    names = [f"{package}.{_SERVICE}" for package in (_PACKAGE, _ALPHA_PACKAGE)]
    servicer = reflection.aio.ReflectionServicer((*service_names, *names), _Symbols())  # type: ignore[attr-defined]  # missing in the stubs
    method = grpc.stream_stream_rpc_method_handler(
        servicer.ServerReflectionInfo,
        request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
        response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    return tuple(grpc.method_handlers_generic_handler(name, {_METHOD: method}) for name in names)


class _Symbols:
    """The pool of all messages and services, in which methods are symbols too. protobuf's own finds no file of a
    method, for which `grpcurl describe` asks.
    """

    def FindFileContainingSymbol(self, symbol: str) -> FileDescriptor:  # noqa: N802 - the pool's name
        pool = descriptor_pool.Default()
        try:
            return pool.FindFileContainingSymbol(symbol)
        except KeyError:
            return pool.FindMethodByName(symbol).containing_service.file

    def __getattr__(self, name: str) -> Any:
        return getattr(descriptor_pool.Default(), name)


def _describe() -> None:
    """Make the file of the newer service known, so that clients can ask for it as for any other."""
    file = FileDescriptorProto()
    reflection_pb2.DESCRIPTOR.CopyToProto(file)
    text = json_format.MessageToJson(file).replace(f"{_ALPHA_PACKAGE}.", f"{_PACKAGE}.")
    renamed = json_format.Parse(text, FileDescriptorProto())
    renamed.name, renamed.package = _FILE, _PACKAGE
    descriptor_pool.Default().Add(renamed)
