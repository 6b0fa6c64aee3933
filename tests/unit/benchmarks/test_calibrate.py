"""The fits of benchmarks/calibrate.py."""

import pytest

from benchmarks.calibrate import fit

SIZES = [(1_000, 5), (10_000, 50), (100_000, 3), (500_000, 10), (1_000_000, 20)]


def rows_of(once: float, row: float, value: float) -> list[tuple[dict[str, float], float]]:
    return [
        ({"once": 1, "rows": n, "values": n * columns}, once + row * n + value * n * columns) for n, columns in SIZES
    ]


def test_a_fit_finds_the_constants_of_exact_measurements() -> None:
    found = fit(rows_of(0.5, 2e-6, 3e-8), ("once", "rows", "values"))
    assert found == pytest.approx({"once": 0.5, "rows": 2e-6, "values": 3e-8}, rel=1e-3)


def test_a_constant_that_would_be_negative_is_left_out() -> None:
    found = fit([(counts, seconds - 1e-4) for counts, seconds in rows_of(0, 2e-6, 0)], ("once", "rows"))
    assert "once" not in found


def test_a_fit_weighs_relative_errors() -> None:
    """The largest run is 10% off. The small ones still decide."""
    *small, (counts, seconds) = rows_of(0.5, 2e-6, 0)
    found = fit([*small, (counts, 1.1 * seconds)], ("once", "rows"))
    assert found["once"] == pytest.approx(0.5, rel=0.02)


def test_what_was_too_small_to_measure_does_not_count() -> None:
    rows = rows_of(0.5, 2e-6, 3e-8)
    assert fit([*rows, ({"once": 1, "rows": 10, "values": 10}, 0.0)], ("once", "rows", "values")) == pytest.approx(
        {"once": 0.5, "rows": 2e-6, "values": 3e-8}, rel=1e-3
    )
    assert fit([({"once": 1}, 0.0)], ("once",)) == {}
