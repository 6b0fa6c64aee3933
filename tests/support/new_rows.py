"""New rows of both parties for a prediction, and their scores in plain numpy."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd

from trilateral.common.base.arrays import FloatVector
from trilateral.common.base.roles import Role
from trilateral.common.config.process import ProcessConfig
from trilateral.common.data.model.model_file import load_model
from trilateral.common.data.tables.table import read_frame
from trilateral.common.jobs.folder import JobFolder

NEW = "new"
"""Name of the dataset at both parties."""


def write_new_rows(
    folder: Path, tables: Mapping[Role, pd.DataFrame], *, n_common: int = 60, n_only: int = 15, seed: int = 5
) -> dict[Role, pd.DataFrame]:
    """Write new rows like those of the training, in a different order at each party, some at one party only.

    The rows have no label. Some values are missing, some numbers are outliers, and some categories are new.
    """
    rng = np.random.default_rng(seed)
    common = [f"new-{number:05d}" for number in range(n_common)]
    written = {}
    for role, table in tables.items():
        ids = [*common, *(f"only-{role}-{number:04d}" for number in range(n_only))]
        features = table.drop(columns=["id", "label"], errors="ignore")
        rows = features.iloc[rng.integers(len(features), size=len(ids))].reset_index(drop=True)
        numbers = rows.select_dtypes("number").columns
        rows[numbers] *= rng.choice([1.0, 30.0], p=[0.9, 0.1], size=(len(rows), len(numbers)))
        rows = rows.mask(rng.random(rows.shape) < 0.05)
        for name in rows.select_dtypes(exclude="number").columns:
            rows.loc[rng.random(len(rows)) < 0.1, name] = "never seen"
        rows.insert(0, "id", ids)
        written[role] = rows.iloc[rng.permutation(len(rows))].reset_index(drop=True)
        written[role].to_csv(folder / f"new-{role}.csv", index=False)
    return written


def with_new_rows(config: ProcessConfig, folder: Path, name: str = NEW) -> ProcessConfig:
    """Return the configuration of a party with the dataset of the new rows."""
    (training,) = config.datasets.values()
    new = training.model_copy(update={"path": folder / f"new-{config.role}.csv"})
    return config.model_copy(update={"datasets": config.datasets | {name: new}})


REASON_LABELS = {"x0": "Balance", "x2": "Balance", "branch": "Branch"}
"""What the host calls its columns; it names x1 to nobody."""


def host_reasons(config: ProcessConfig, job: str, rows: pd.DataFrame) -> dict[str, list[str]]:
    """Return the host's labels by ID that raise a score above the mean of the training rows, the strongest first."""
    model = load_model(JobFolder(config.state, job).model)
    steps = model.steps
    dataset = config.datasets[NEW]
    terms = steps.expand(read_frame(rows, steps.features, steps.texts, dataset.missing)) - steps.mean
    raised = pd.DataFrame(0.0, index=rows["id"], columns=[*dict.fromkeys(REASON_LABELS.values())])
    owners = [column.name for column in steps.columns for _ in column.terms]
    for term, (name, owner) in enumerate(zip(steps.terms, owners, strict=True)):
        if owner in REASON_LABELS:
            raised[REASON_LABELS[owner]] += terms[:, term] * model.weights[name]
    return {str(one): [*row[row > 0].sort_values(ascending=False).index] for one, row in raised.iterrows()}


def plain_scores(configs: Mapping[Role, ProcessConfig], job: str, rows: Mapping[Role, pd.DataFrame]) -> pd.Series:
    """Return the scores by ID from both parties' weights on the joined table, in the guest's order.

    The host's part is rounded to multiples of 2^-12, as far as it is below 16.
    """
    joined = rows[Role.GUEST].merge(rows[Role.HOST], on="id")
    total: FloatVector = np.zeros(len(joined))
    for role in (Role.HOST, Role.GUEST):
        model = load_model(JobFolder(configs[role].state, job).model)
        total += model.intercept
        for column in model.preprocessing["columns"]:
            values = joined[column["name"]]
            if column["kind"] == "number":
                terms = {column["name"]: values.fillna(column["fill"]).clip(column["lower"], column["upper"])}
            else:
                known = [*column["categories"], column["reference"]]
                terms = {f"{column['name']}={category}": values == category for category in column["categories"]}
                if column["missing"] == "term":
                    terms[f"{column['name']} is missing"] = values.isna()
                if column["other"] == "term":
                    terms[f"{column['name']} is other"] = values.notna() & ~values.isin(known)
            for name, term in terms.items():
                total += model.weights[name] * term.to_numpy()
        if role is Role.HOST:
            assert np.abs(total).max() < 16
            total = np.rint(total * 2**12) / 2**12
    return pd.Series(total, index=joined["id"])
