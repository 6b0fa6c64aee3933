"""Fit the sine series of `common/shares/series.py`, and print the table.

python benchmarks/series.py

For |u| <= U the sigmoid is near 1/2 + u / P + sum_k b_k sin(2 pi k u / P). For a given period P and number of terms K,
Remez exchange finds the b_k with the least maximal error: the sines are a Chebyshev system on (0, P / 2). The program
tries a grid of P and prints, for each U, the series with the fewest terms whose error is below the bound and whose
right side increases everywhere, so that the loss that belongs to it is convex.
"""

import argparse
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trilateral.common.shares.series import MAX_TERMS

Array = NDArray[np.float64]

BOUND = 1e-6
"""Largest permitted error of the probability."""
STEP = 1 / 16
"""Grid of the periods. Its numbers are exact in floating point."""
EXCHANGES = 60
GRID = 4001


@dataclass(frozen=True)
class Fit:
    """One series: its period, its coefficients (n_terms,), its largest error, and its smallest slope anywhere."""

    period: float
    coef: Array
    error: float
    slope: float


def odd_part(u: Array) -> Array:
    """Return the sigmoid of u minus 1/2."""
    half: Array = np.tanh(u / 2) / 2
    return half


def sines(u: Array, period: float, n_terms: int) -> Array:
    """Return sin(2 pi k u / period), shape (n, n_terms)."""
    waves: Array = np.sin(2 * np.pi * np.outer(u, np.arange(1, n_terms + 1)) / period)
    return waves


def exchange(limit: float, period: float, n_terms: int) -> Fit | None:
    """Return the best series for |u| <= limit; None if the exchange fails."""
    n = n_terms + 1
    points = limit * np.sin(np.pi / 2 * (np.arange(n) + 0.8) / (n - 0.2))
    grid = limit * np.sin(np.pi / 2 * np.linspace(0, 1, GRID)[1:])
    waves, target = sines(grid, period, n_terms), odd_part(grid) - grid / period
    best: tuple[float, Array] | None = None
    for _ in range(EXCHANGES):
        system = np.column_stack([sines(points, period, n_terms), (-1.0) ** np.arange(n)])
        solved = np.linalg.solve(system, odd_part(points) - points / period)
        error = target - waves @ solved[:-1]
        largest = float(np.abs(error).max())
        if best is None or largest < best[0]:
            best = largest, solved[:-1]
        if largest < abs(solved[-1]) * 1.001:
            break
        runs = np.split(np.arange(len(error)), np.flatnonzero(np.diff(np.sign(error))) + 1)
        extremes = [int(run[np.abs(error[run]).argmax()]) for run in runs]
        while len(extremes) > n:
            extremes.pop(0 if abs(error[extremes[0]]) < abs(error[extremes[-1]]) else -1)
        if len(extremes) < n:
            break
        points = grid[extremes]
    if best is None:
        return None
    return Fit(period, best[1], best[0], smallest_slope(period, best[1]))


def smallest_slope(period: float, coef: Array) -> float:
    """Return the smallest derivative of the series over a whole period."""
    u = np.linspace(0, period / 2, 20001)
    angles = 2 * np.pi * np.arange(1, len(coef) + 1) / period
    return float((1 / period + np.cos(np.outer(u, angles)) @ (coef * angles)).min())


def shortest(limit: int, bound: float) -> Fit:
    """Return the series with the fewest terms that keeps the bound and increases everywhere."""
    periods = STEP * np.arange(round(2.0 * limit / STEP), round(2.4 * limit / STEP))
    for n_terms in range(limit, MAX_TERMS + 1):
        fits = [exchange(limit, float(period), n_terms) for period in periods]
        good = [fit for fit in fits if fit and fit.error <= bound and fit.slope > 0 and np.abs(fit.coef).max() < 0.5]
        if good:
            return min(good, key=lambda fit: fit.error)
    raise SystemExit(f"no series of {MAX_TERMS} terms for scores up to {limit}")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bound", type=float, default=BOUND, help="largest permitted error of the probability")
    bound = parser.parse_args().bound
    for limit in (8, 12, 24):
        fit = shortest(limit, bound)
        print(f"# {len(fit.coef)} terms, largest error {fit.error:.1e}, smallest slope {fit.slope:.1e}")
        print(f"{limit}: Series({fit.period}, ({', '.join(str(round(b * 2**32)) for b in fit.coef)})),")


if __name__ == "__main__":
    main()
