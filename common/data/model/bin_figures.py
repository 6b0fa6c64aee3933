"""The figures of each bin of a party: its rows, its event rate, its weight of evidence and its information value."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trilateral.common.data.model.bins_file import BinsFile
from trilateral.common.data.model.model_file import PartyModel
from trilateral.common.data.preprocessing.bins import Bin, BinnedColumn
from trilateral.common.protocol.binning import information_values, weight_of_evidence


@dataclass(frozen=True)
class BinFigures:
    """One bin of a column, over the training rows. A figure is None if it needs labels that are not known."""

    column: str
    """Name of the column; at the guest, of a column of the host, its number in words."""
    bin: str
    """The values of the bin, without the name of the column; of a column of the host at the guest, its number."""
    n_rows: int
    """Training rows."""
    share: float
    """Of the training rows of the column."""
    event_rate: float | None
    """Share of positive rows."""
    woe: float | None
    """Weight of evidence; None if a bin of the column has rows of one label only."""
    iv: float | None
    """Part of the information value of the column; None like `woe`."""


def bin_figures(source: BinsFile | PartyModel) -> list[list[BinFigures]]:
    """Return the figures of the bins of each column: of a bins job, or of a model.

    Args:
        source: what a party gets to know in a bins job, or its part of a model. Columns without bins have none.
    """
    if isinstance(source, PartyModel):
        return [_own(each) for each in source.steps.columns if isinstance(each, BinnedColumn)]
    columns = [_own(each) for each in source.columns]
    for number, column in enumerate(source.host_columns, 1):
        labels = [f"bin {place}" for place in range(1, len(column.bins) + 1)]
        columns.append(_figures(f"column {number} of the host", labels, column.bins))
    return columns


def information_value(bins: Sequence[BinFigures]) -> float | None:
    """Return the information value of a column; None if the bins have none."""
    parts = [each.iv for each in bins if each.iv is not None]
    return sum(parts) if len(parts) == len(bins) else None


def bin_alone(column: str, label: str) -> str:
    """Return the label of a bin without the name of its column, for a table that has the name elsewhere."""
    return label.removeprefix(f"{column}=").removeprefix(f"{column} ").removeprefix("in ")


def _own(column: BinnedColumn) -> list[BinFigures]:
    return _figures(column.name, [bin_alone(column.name, label) for label in column.labels], column.bins)


def _figures(name: str, labels: Sequence[str], bins: Sequence[Bin]) -> list[BinFigures]:
    n_rows = sum(each.n_rows for each in bins)
    positive = [each.n_positive for each in bins if each.n_positive is not None]
    woe = parts = None
    if len(positive) == len(bins):
        counts = np.array(positive), np.array([each.n_rows for each in bins]) - np.array(positive)
        if min(counts[0].min(), counts[1].min()) > 0:
            woe, parts = weight_of_evidence(*counts), information_values(*counts)
    return [
        BinFigures(
            column=name,
            bin=labels[place],
            n_rows=each.n_rows,
            share=each.n_rows / n_rows,
            event_rate=None if each.n_positive is None or not each.n_rows else each.n_positive / each.n_rows,
            woe=None if woe is None else float(woe[place]),
            iv=None if parts is None else float(parts[place]),
        )
        for place, each in enumerate(bins)
    ]
