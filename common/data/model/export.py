"""A party's part of a model in other layouts: scikit-learn's coefficients as JSON, and a table of weights as CSV."""

import csv
import io
import json
import math
from dataclasses import dataclass
from typing import Any

from trilateral.common.data.model.model_file import PartyModel

CSV_COLUMNS = ("term", "weight", "standardised_weight", "odds_ratio_per_unit", "odds_ratio_per_sd")
INTERCEPT = "(intercept)"
NOTES = (
    "This is one party's part: the score of a person is the sum of both parties' parts, intercepts included.",
    "feature_names_in_ are terms, in units of the table: a column of numbers is one, and a category is 0 or 1.",
    "`columns` says how a table becomes terms. A missing number is filled with `fill`, then clipped to `lower` and "
    "`upper`; without that, rows that miss values or lie outside get other scores.",
    "The sigmoid of a score is no calibrated probability: the guest's `calibration` makes one of it.",
)


@dataclass(frozen=True)
class Weight:
    """What one term of a model counts for."""

    term: str
    weight: float
    """Score per unit of the term."""
    standardised: float
    """Score per unit of the standardised term; of a term that is not standardised the same as `weight`."""
    has_spread: bool
    """Whether the term was standardised, so that its standard deviation is known."""

    @property
    def odds_ratio(self) -> float:
        """By what the odds of the positive label are multiplied per unit, other terms left alone."""
        return _exp(self.weight)

    @property
    def odds_ratio_per_sd(self) -> float | None:
        """The same per standard deviation of the clipped values; None where that is not known."""
        return _exp(self.standardised) if self.has_spread else None


def weights_of(model: PartyModel) -> list[Weight]:
    """All terms of a model, in the order of the model."""
    flags = [flag for column in model.steps.columns for flag in column.standardised]
    pairs = zip(model.weights.items(), model.standardised_weights.values(), flags, strict=True)
    return [Weight(term, weight, beta, flag) for (term, weight), beta, flag in pairs]


def scikit_learn_json(model: PartyModel) -> str:
    """The fitted attributes of ``sklearn.linear_model.LogisticRegression`` by their names, as JSON.

    `classes_` are 0 and 1, the negative and the positive label, whatever they are called in the guest's table.
    """
    layout: dict[str, Any] = {
        "coef_": [list(model.weights.values())],
        "intercept_": [model.intercept],
        "classes_": [0, 1],
        "n_features_in_": len(model.weights),
        "feature_names_in_": list(model.weights),
        "columns": model.preprocessing["columns"],
        "job": model.job.name,
        "run_id": model.run_id,
        "role": model.role.value,
        "notes": NOTES,
    }
    if model.calibration is not None:
        layout["calibration"] = model.calibration.model_dump()
    return json.dumps(layout, indent=2) + "\n"


def weights_csv(model: PartyModel) -> str:
    """A line for each term, in the order of the model, and one for the intercept; `CSV_COLUMNS`."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for each in weights_of(model):
        per_sd = "" if each.odds_ratio_per_sd is None else repr(each.odds_ratio_per_sd)
        writer.writerow([each.term, repr(each.weight), repr(each.standardised), repr(each.odds_ratio), per_sd])
    writer.writerow([INTERCEPT, repr(model.intercept), "", "", ""])
    return text.getvalue()


def _exp(value: float) -> float:
    try:
        return math.exp(value)
    except OverflowError:
        return math.inf
