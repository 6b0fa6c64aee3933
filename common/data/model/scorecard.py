"""The points of a scorecard, and what helps to choose columns: both follow from a party's part of a model alone.

With the points to double the odds PDO, the total of a person is

    offset - factor u,        factor = PDO / ln 2,    offset = base_score - factor ln(base_odds)

where u is the joint score, the log-odds of the positive label, and base_odds are negative to positive. So more points
mean a smaller probability of the positive label (Siddiqi 2017, Intelligent Credit Scoring, chapter 10). u is a sum of
the parts of both parties and of their columns, so each party makes the points of its own bins.
"""

import csv
import io
import json
import math
from dataclasses import asdict, dataclass

import numpy as np

from trilateral.common.base.arrays import FloatMatrix
from trilateral.common.base.errors import DataError
from trilateral.common.base.roles import Role
from trilateral.common.data.model.model_file import PartyModel
from trilateral.common.data.preprocessing.bins import BinnedColumn

BASE = "(base)"
"""The row of the points that everybody has. Only the guest's part has it."""
CSV_COLUMNS = ("column", "bin", "n_rows", "woe", "points", "rounded")
"""Header of the CSV table."""


@dataclass(frozen=True)
class Scale:
    """How a score becomes points."""

    base_score: float = 600.0
    """The points at `base_odds`."""
    base_odds: float = 50.0
    """Odds, negative to positive."""
    pdo: float = 20.0
    """Points that double the odds."""

    @property
    def factor(self) -> float:
        """Points per unit of -u."""
        return self.pdo / math.log(2)

    @property
    def offset(self) -> float:
        """Points at u = 0."""
        return self.base_score - self.factor * math.log(self.base_odds)


@dataclass(frozen=True)
class Points:
    """A row of a scorecard."""

    column: str
    bin: str
    n_rows: int | None
    """Training rows of the bin; None for the base points."""
    woe: float | None
    """None if it is not known."""
    points: float
    """Exact. The points of both parties add up to offset - factor u."""

    @property
    def rounded(self) -> int:
        """Whole points. A total of them is off by at most half a point for each column and for the base."""
        return round(self.points)


def scorecard(model: PartyModel, scale: Scale) -> list[Points]:
    """Return the points of a party's bins.

    The guest's intercept is in its base points. The host has no base points: its constant, which makes up for the means
    of its columns, is spread evenly over them.

    Args:
        model: the party's part of a model.
        scale: how a score becomes points.

    Raises:
        DataError: a column has no bins.
    """
    columns = model.steps.columns
    without = [column.name for column in columns if not isinstance(column, BinnedColumn)]
    if without:
        named = ", ".join(map(repr, without))
        raise DataError(
            f"a scorecard needs columns in bins, and these have none: {named}: train with `preprocessing.binning`"
        )
    binned = [column for column in columns if isinstance(column, BinnedColumn)]
    is_guest = model.role is Role.GUEST
    rows = []
    if is_guest:
        rows.append(Points(BASE, "", None, None, scale.offset - scale.factor * model.intercept))
    shift = 0.0 if is_guest or not binned else model.intercept / len(binned)
    for column in binned:
        woe = column.woe_values
        for place, value in enumerate(column.bin_scores([model.weights[term] for term in column.terms])):
            rows.append(
                Points(
                    column=column.name,
                    bin=column.labels[place],
                    n_rows=column.bins[place].n_rows,
                    woe=None if woe is None else float(woe[place]),
                    points=-scale.factor * (value + shift),
                )
            )
    return rows


def scorecard_csv(rows: list[Points]) -> str:
    """Format a scorecard as CSV."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for row in rows:
        cells = (row.column, row.bin, row.n_rows, row.woe, row.points, row.rounded)
        writer.writerow(["" if cell is None else cell for cell in cells])
    return text.getvalue()


def scorecard_record(model: PartyModel, scale: Scale, rows: list[Points]) -> dict[str, object]:
    """Return a scorecard as plain values."""
    return {
        "role": model.role,
        "job": model.job.name,
        "run_id": model.run_id,
        **asdict(scale),
        "points": [asdict(row) | {"rounded": row.rounded} for row in rows],
    }


def scorecard_json(model: PartyModel, scale: Scale, rows: list[Points]) -> str:
    """Format a scorecard as JSON."""
    return json.dumps(scorecard_record(model, scale, rows), indent=2) + "\n"


@dataclass(frozen=True)
class Candidate:
    """What helps to decide whether a term stays in the model."""

    term: str
    iv: float | None
    """Information value of its column; None if the column has no bins, or its labels are not known."""
    weight: float
    """Standardised weight."""
    vif: float | None
    """Variance inflation factor among the party's own terms, 1 / (1 - R^2); None if it is not known."""
    correlation: float | None
    """The largest correlation with another of the party's own terms by its absolute value; None if not known."""
    partner: str | None
    """That other term."""


def candidates(model: PartyModel) -> list[Candidate]:
    """Return figures of a party's terms, in order."""
    steps = model.steps
    correlations = _correlations(model)
    inflation = None if correlations is None else np.diag(np.linalg.pinv(correlations, hermitian=True))
    found: list[Candidate] = []
    for column in steps.columns:
        parts = column.iv_parts if isinstance(column, BinnedColumn) else None
        iv = None if parts is None else float(parts.sum())
        for term in column.terms:
            place = len(found)
            partner = correlation = None
            if correlations is not None and len(correlations) > 1:
                others = np.abs(correlations[place]).copy()
                others[place] = -1.0
                most = int(others.argmax())
                partner, correlation = steps.terms[most], float(correlations[place, most])
            vif = None if inflation is None else max(float(inflation[place]), 1.0)
            found.append(Candidate(term, iv, model.standardised_weights[term], vif, correlation, partner))
    return found


def _correlations(model: PartyModel) -> FloatMatrix | None:
    """Return the correlations of a party's terms over the training rows; None without whitening.

    Whitening solves T'(Z'Z/n + 4 l2 I) T = I for the centred terms Z, so Z'Z/n follows from T.
    """
    steps = model.steps
    T = steps.directions
    if T is None or not len(T):
        return None
    l2 = 0.0 if model.job.folds is not None else model.job.l2  # See `make_party_data`.
    covariance = np.linalg.pinv(T @ T.T, hermitian=True) - 4 * l2 * np.eye(len(T))
    size = np.sqrt(np.maximum(np.diag(covariance), 1e-300))
    correlations: FloatMatrix = np.clip(covariance / np.outer(size, size), -1.0, 1.0)
    return correlations
