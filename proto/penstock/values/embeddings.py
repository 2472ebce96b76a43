"""Inputs and results of models that embed or classify."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from penstock.models import RequestClass
from penstock.v1 import embeddings_pb2, types_pb2
from penstock.values.fields import build, duration_field, unfit
from penstock.values.requests import class_field
from penstock.values.results import Receipt, Usage

Input = str | Sequence[int]
"""Text or token ids."""
Inputs = str | Sequence[Input]
"""One text, or many inputs."""


@dataclass(frozen=True, slots=True)
class PoolingOptions:
    """Options of a request to a model that embeds or classifies."""

    truncate: bool = False
    """Whether inputs that are too long are cut, and not refused."""
    truncate_to: int | None = None
    """Most tokens of an input, special ones included; the rest is cut off. Default: the context, where `truncate` is
    set."""
    truncate_beginning: bool = False
    """Whether the beginning is cut off, and not the end."""
    request_class: RequestClass = RequestClass.STANDARD
    queue_timeout: float | None = None
    """Seconds within which the request must start."""
    lora_adapter: str = ""

    def to_proto(self) -> embeddings_pb2.PoolingOptions:
        """Build the message.

        Raises:
            TypeError: a value is of another type; names the field.
            ValueError: a number is out of range, or text is not Unicode; names the field.
        """
        wire = build(
            embeddings_pb2.PoolingOptions,
            "options.",
            request_class=class_field(self.request_class),
            lora_adapter=self.lora_adapter,
        )
        if self.truncate or self.truncate_to is not None or self.truncate_beginning:
            beginning = self.truncate_beginning
            side = embeddings_pb2.TRUNCATION_SIDE_BEGINNING if beginning else embeddings_pb2.TRUNCATION_SIDE_END
            wire.truncation.CopyFrom(
                build(embeddings_pb2.Truncation, "options.truncation.", max_tokens=self.truncate_to, side=side)
            )
        if self.queue_timeout is not None:
            wire.queue_timeout.CopyFrom(duration_field("options.queue_timeout", self.queue_timeout))
        return wire


@dataclass(frozen=True, slots=True)
class Embeddings:
    """Vectors of a request's inputs."""

    request_id: str
    vectors: tuple[array[float], ...]
    """Vector of each input, in order: an array of float32 numbers, which is a list for most purposes and a buffer for
    libraries such as NumPy."""
    usage: Usage
    receipt: Receipt

    @classmethod
    def from_proto(cls, wire: embeddings_pb2.EmbedResponse) -> Embeddings:
        return cls(
            wire.request_id,
            tuple(map(unpack, wire.vectors)),
            Usage.from_proto(wire.usage),
            Receipt.from_proto(wire.receipt),
        )


@dataclass(frozen=True, slots=True)
class Classifications:
    """Classes of a request's inputs."""

    request_id: str
    values: tuple[tuple[float, ...], ...]
    """Number of each class for each input, in order."""
    labels: tuple[str, ...]
    """Names of the classes; empty where the model does not name them."""
    usage: Usage
    receipt: Receipt

    @property
    def best(self) -> tuple[str | int, ...]:
        """The class with the largest number for each input: its name, or its index where classes have no names."""
        places = [max(range(len(each)), key=each.__getitem__) for each in self.values]
        return tuple(self.labels[place] if self.labels else place for place in places)

    @classmethod
    def from_proto(cls, wire: embeddings_pb2.ClassifyResponse) -> Classifications:
        return cls(
            wire.request_id,
            tuple(tuple(each.values) for each in wire.results),
            tuple(wire.labels),
            Usage.from_proto(wire.usage),
            Receipt.from_proto(wire.receipt),
        )


@dataclass(frozen=True, slots=True)
class Scores:
    """Scores of a request's documents."""

    request_id: str
    scores: tuple[float, ...]
    """Score of each document, in order. Higher fits better."""
    usage: Usage
    receipt: Receipt

    def ranking(self, top: int | None = None) -> tuple[Ranked, ...]:
        """Return the documents with the highest scores, best first. `top`: how many; default: all."""
        order = sorted(range(len(self.scores)), key=lambda index: (-self.scores[index], index))
        return tuple(Ranked(index, self.scores[index]) for index in order[:top])

    @classmethod
    def from_proto(cls, wire: embeddings_pb2.ScoreResponse) -> Scores:
        return cls(wire.request_id, tuple(wire.scores), Usage.from_proto(wire.usage), Receipt.from_proto(wire.receipt))


@dataclass(frozen=True, slots=True)
class Ranked:
    """One document of a ranking."""

    index: int
    """Place of the document in the request."""
    score: float


def unpack(vector: bytes) -> array[float]:
    """Return the numbers of a packed vector."""
    numbers = array("f")
    numbers.frombytes(vector)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


def inputs_to_proto(field: str, inputs: Inputs) -> list[embeddings_pb2.PoolingInput]:
    """Convert inputs to the wire. A single text is one input.

    Raises:
        TypeError: an input is neither text nor token ids; names it.
        ValueError: an id is out of range, or text is not Unicode; names it.
    """
    if isinstance(inputs, str):
        inputs = [inputs]
    if isinstance(inputs, bytes | bytearray | memoryview) or not isinstance(inputs, Sequence):
        raise unfit(field, "text, or a sequence of inputs", inputs)
    return [_input(f"{field}[{index}]", each) for index, each in enumerate(inputs)]


def _input(path: str, value: Any) -> embeddings_pb2.PoolingInput:
    if isinstance(value, str):
        return build(embeddings_pb2.PoolingInput, f"{path}.", text=value)
    if not isinstance(value, Sequence) or isinstance(value, bytes | bytearray | memoryview):
        raise unfit(path, "text or token ids", value)
    return embeddings_pb2.PoolingInput(tokens=build(types_pb2.TokenPrompt, f"{path}.tokens.", ids=list(value)))
