"""Results of a request's groups, in the order of its inputs. Pure."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Sequence

from cluster.errors import GenerationFailedError
from router.generation.generation import Generation


def vectors_of(generation: Generation, sizes: Sequence[int]) -> list[bytes]:
    """Return the vector of each input of a request that has ended well. `sizes` are the inputs of each group.

    Raises:
        GenerationFailedError: a replica has sent fewer vectors than it was asked for.
    """
    found: list[bytes] = []
    for choice, size in zip(generation.choices, sizes, strict=True):
        vectors = choice.end.vectors if choice.end is not None else ()
        if len(vectors) != size:
            raise GenerationFailedError(generation.request_id, 0, detail="vectors are missing")
        found.extend(vectors)
    return found


def numbers_of(vector: bytes) -> tuple[float, ...]:
    return struct.unpack(f"<{len(vector) // 4}f", vector)


def cosines(queries: Sequence[bytes], documents: Sequence[bytes]) -> Iterator[float]:
    """Yield how near each document is to its query, -1 to 1. One query is that of all documents."""
    asked = [numbers_of(vector) for vector in queries]
    lengths = [_length(query) for query in asked]
    for index, vector in enumerate(documents):
        place = index if len(asked) > 1 else 0
        document = numbers_of(vector)
        together = lengths[place] * _length(document)
        products = math.fsum(one * other for one, other in zip(asked[place], document, strict=True))
        yield products / together if together else 0.0


def _length(vector: Sequence[float]) -> float:
    return math.sqrt(math.fsum(number * number for number in vector))
