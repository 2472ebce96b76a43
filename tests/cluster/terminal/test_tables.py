"""Numbers as tables have them."""

from __future__ import annotations

import pytest

from cluster.terminal.tables import number


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (12_345, "12,345"), (0.0, "0.0000"), (1234.5, "1,234.5000"), (0.01, "0.0100"), (0.001, "0.0010"),
        (9e-05, "0.000090"), (4.47192e-05, "0.000045"), (-9.6e-06, "-0.0000096"),
    ],
)  # fmt: skip
def test_a_number_has_no_exponent(value: float, expected: str) -> None:
    assert expected == number(value)


def test_a_small_number_may_have_more_digits() -> None:
    assert "0.0012345" == number(0.0012345, digits=5)
    assert "0.0000447192" == number(4.47192e-05, digits=6)
