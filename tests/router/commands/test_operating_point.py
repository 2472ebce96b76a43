"""`penstock operating-point`: what the flags name changes, the rest stays."""

from __future__ import annotations

import pytest

from cluster.cli.main import build_parser
from penstock.values.slo import ClassSlo, OperatingPoint
from router.commands.decisions.command import point_text
from router.commands.operating_point import with_flags

POINT = OperatingPoint(
    interactive=ClassSlo(ttft_p99_s=2.0, itl_p95_s=0.05), batch=ClassSlo(ttft_p99_s=60.0), budget_per_hour=9.0
)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("", POINT),
        ("--itl-p95-ms 40", OperatingPoint(ClassSlo(2.0, 0.04), batch=ClassSlo(60.0), budget_per_hour=9.0)),
        ("--ttft-p99-s 0 --itl-p95-ms 0", OperatingPoint(batch=ClassSlo(60.0), budget_per_hour=9.0)),
        (
            "--class batch --ttft-p99-s 30 --attainment 0.95",
            OperatingPoint(ClassSlo(2.0, 0.05), batch=ClassSlo(30.0), attainment=0.95, budget_per_hour=9.0),
        ),
        (
            "--budget-per-hour 0 --price-per-gpu-hour 2.5",
            OperatingPoint(ClassSlo(2.0, 0.05), batch=ClassSlo(60.0), price_per_gpu_hour=2.5),
        ),
    ],
)
def test_flags_change_what_they_name(flags: str, expected: OperatingPoint) -> None:
    options = build_parser(whole=True).parse_args(["operating-point", "--pool", "demo", *flags.split()])

    assert expected == with_flags(POINT, options)


@pytest.mark.parametrize(
    ("point", "text"),
    [
        (
            POINT,
            "interactive TTFT p99 2 s, interactive ITL p95 50 ms, batch TTFT p99 60 s for 99 % of the requests, "
            "at most 9 an hour",
        ),
        (OperatingPoint(standard=ClassSlo(1.0), attainment=0.995), "standard TTFT p99 1 s for 99.5 % of the requests"),
        (OperatingPoint(price_per_gpu_hour=2.5), "nothing is promised, 2.5 a GPU hour"),
        (OperatingPoint(), "nothing is promised"),
    ],
)
def test_a_point_is_told_in_a_line(point: OperatingPoint, text: str) -> None:
    assert text == point_text(point)
