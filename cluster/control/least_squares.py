"""Small non-negative least squares in closed form, for three or four unknowns. No library is needed."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

Matrix = list[list[float]]


def solve(matrix: Matrix, right: Sequence[float]) -> list[float] | None:
    """Solve a small linear system. Return None where it has no unique solution."""
    size = len(right)
    rows = [[*matrix[i], right[i]] for i in range(size)]
    for column in range(size):
        pivot = max(range(column, size), key=lambda row: abs(rows[row][column]))
        if abs(rows[pivot][column]) < 1e-12:
            return None
        rows[column], rows[pivot] = rows[pivot], rows[column]
        for row in range(column + 1, size):
            factor = rows[row][column] / rows[column][column]
            for k in range(column, size + 1):
                rows[row][k] -= factor * rows[column][k]
    result = [0.0] * size
    for row in reversed(range(size)):
        known = sum(rows[row][k] * result[k] for k in range(row + 1, size))
        result[row] = (rows[row][size] - known) / rows[row][row]
    return result


def solve_with_floors(gram: Matrix, right: Sequence[float], floors: Sequence[float]) -> list[float] | None:
    """Minimise x'Gx - 2r'x exactly, with every x at its floor or above. Return None where that has no solution.

    Args:
        gram: G, symmetric.
        right: r.
        floors: lower bounds.
    """
    size = len(right)
    best: tuple[float, list[float]] | None = None
    # Every set of unknowns at their floors is tried. For three or four that is exact and cheap. Usually none is held.
    for count in range(size + 1):
        for held in itertools.combinations(range(size), count):
            values = _with_held(gram, right, floors, held)
            if values is None or any(v < f - 1e-12 for v, f in zip(values, floors, strict=True)):
                continue
            cost = _cost(gram, right, values)
            if best is None or cost < best[0]:
                best = cost, values
        if best is not None and count == 0:
            break
    return best[1] if best else None


def condition(gram: Matrix) -> float:
    """Estimate the condition number of a symmetric positive matrix after scaling its columns to one another. It is
    large where the samples hardly tell the unknowns apart, and infinity where they cannot.
    """
    size = len(gram)
    scale = [gram[i][i] ** 0.5 for i in range(size)]
    if min(scale) <= 0:
        return float("inf")
    scaled = [[gram[i][j] / (scale[i] * scale[j]) for j in range(size)] for i in range(size)]
    largest = _power(scaled, inverse=False)
    smallest = _power(scaled, inverse=True)
    return float("inf") if largest is None or smallest is None else largest * smallest


def _power(matrix: Matrix, *, inverse: bool) -> float | None:
    """Return the largest eigenvalue of the matrix or of its inverse; None where the inverse does not exist."""
    vector = [1.0 + 0.1 * i for i in range(len(matrix))]
    value = 0.0
    for _ in range(20):
        moved = (
            solve(matrix, vector)
            if inverse
            else [sum(a * b for a, b in zip(row, vector, strict=True)) for row in matrix]
        )
        if moved is None:
            return None
        value = max(abs(each) for each in moved)
        if value == 0:
            return None
        vector = [each / value for each in moved]
    return value


def _with_held(
    gram: Matrix, right: Sequence[float], floors: Sequence[float], held: Sequence[int]
) -> list[float] | None:
    free = [i for i in range(len(right)) if i not in held]
    reduced = [[gram[i][j] for j in free] for i in free]
    known = [right[i] - sum(gram[i][j] * floors[j] for j in held) for i in free]
    solved = solve(reduced, known)
    if solved is None:
        return None
    values = list(floors)
    for i, value in zip(free, solved, strict=True):
        values[i] = value
    return values


def _cost(gram: Matrix, right: Sequence[float], x: Sequence[float]) -> float:
    size = len(x)
    quadratic = sum(x[i] * gram[i][j] * x[j] for i in range(size) for j in range(size))
    return quadratic - 2 * sum(right[i] * x[i] for i in range(size))
