"""The line as operators see it."""

from __future__ import annotations

from cluster.queue.line import Line, TenantLine
from penstock.models import RequestClass
from router.admin.line import line_entries


def test_a_tenants_weight_is_told_as_it_is_set_whatever_it_is_in_its_cell() -> None:
    line = Line(lines=(TenantLine(RequestClass.STANDARD, "acme", 3, 500, 0, 8.0),))
    assert [2.0] == [each.weight for each in line_entries(line, {"acme": 2.0}.__getitem__)]
