"""A small table with the columns of Credit 2, made by a seed: it stands in for the published one, without a network."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from trilateral.common.trial.catalogue import PUBLISHED, PublishedDataSet, PublishedName
from trilateral.common.trial.published import content_sha256, read_published

N_ROWS = 12_000


def write_credit2(path: Path, n_rows: int = N_ROWS) -> PublishedDataSet:
    """Write the table as its publisher would, and return its entry for the catalogue."""
    rng = np.random.default_rng(2)
    latent = rng.normal(size=n_rows)  # What the parties' columns have in common with the label.

    def count(rate: float, slope: float) -> pd.Series:
        return pd.Series(rng.poisson(rate * np.exp(slope * latent)))

    columns = {
        "RevolvingUtilizationOfUnsecuredLines": (1 / (1 + np.exp(-latent - rng.normal(size=n_rows)))).round(4),
        "age": np.clip(50 - 4 * latent + 14 * rng.normal(size=n_rows), 21, 100).round(),
        "NumberOfTime30-59DaysPastDueNotWorse": count(0.2, 0.9),
        "DebtRatio": np.exp(-1 + 0.2 * latent + rng.normal(size=n_rows)).round(4),
        "MonthlyIncome": np.exp(8.6 - 0.2 * latent + 0.6 * rng.normal(size=n_rows)).round(),
        "NumberOfOpenCreditLinesAndLoans": count(8, -0.1),
        "NumberOfTimes90DaysLate": count(0.08, 1.1),
        "NumberRealEstateLoansOrLines": count(1, -0.1),
        "NumberOfTime60-89DaysPastDueNotWorse": count(0.08, 1.0),
        "NumberOfDependents": count(0.8, 0.1),
    }
    table = pd.DataFrame(columns)
    table.loc[rng.random(n_rows) < 0.2, "MonthlyIncome"] = np.nan
    data_set = PUBLISHED[PublishedName.CREDIT2]
    (header,) = data_set.headers
    label = (rng.random(n_rows) < 1 / (1 + np.exp(2.4 - 1.2 * latent))).astype(int)
    table[header[0]], table[header[-1]] = np.arange(1, n_rows + 1), label
    table = table[list(header)]
    path.write_text(table.to_csv(index=False, na_rep="NA"))
    content = read_published(path.read_bytes(), data_set)
    return replace(data_set, n_rows=n_rows, sha256=content_sha256(content))
