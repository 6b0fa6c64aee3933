"""Bins of made rows by optbinning, as JSON: what tests/oracles/test_bins_against_optbinning.py compares with ours.

`make binning-oracle` runs this script in an environment of its own and compares its output with bins.json.
"""

import json
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray
from optbinning import OptimalBinning  # type: ignore[import-not-found]  # In an environment of its own.

N_ROWS = 5000
MAX_BINS, MIN_SHARE, N_FINE = 5, 0.05, 20


def u(k: int) -> NDArray[np.float64]:
    """Numbers in [0, 1) that every language makes alike: the fractional parts of multiples of a square root."""
    return np.asarray((np.arange(1, N_ROWS + 1) * np.sqrt(k)) % 1, np.float64)


def made_rows() -> tuple[dict[str, NDArray[np.float64]], NDArray[np.bool_]]:
    normal = np.vectorize(NormalDist().inv_cdf)
    rising, falling, mixed = u(2) ** 2, np.exp(normal(u(3))), normal(u(5))
    score = -1.5 + 2 * rising - 0.4 * np.log(falling) + 0.3 * mixed - 0.1 * mixed**2
    bad = u(7) < 1 / (1 + np.exp(-score))
    falling[u(11) < 0.07] = np.nan
    return {"rising": rising, "falling": falling, "mixed": mixed}, bad


def main() -> None:
    columns, bad = made_rows()
    found: dict[str, Any] = {"n_bad": int(bad.sum())}
    for name, values in columns.items():
        edges = np.nanquantile(values, np.arange(1, N_FINE) / N_FINE)
        binning = OptimalBinning(
            name=name,
            solver="cp",
            divergence="iv",
            user_splits=edges.tolist(),
            max_n_bins=MAX_BINS,
            min_bin_size=MIN_SHARE,
            monotonic_trend="auto_asc_desc",
        )
        binning.fit(values, bad.astype(int))
        table = binning.binning_table.build()
        rows = table[(table["Count"] > 0) & (table.index != "Totals")]
        found[name] = {
            "status": binning.status,
            "splits": [float(f"{split:.12g}") for split in binning.splits],
            "n_rows": rows["Count"].astype(int).tolist(),
            "n_bad": rows["Event"].astype(int).tolist(),
            # The sign of optbinning's WOE is the other one.
            "woe": [float(f"{-woe:.10g}") for woe in rows["WoE"]],
            "iv": [float(f"{iv:.10g}") for iv in rows["IV"]],
        }
    print(json.dumps(found, indent=1))


main()
