"""Export of a party's part of a model: scikit-learn's attributes as JSON, or a table of weights as CSV."""

import csv
import io
import json
import math
from dataclasses import dataclass

from trilateral.common.data.model.inference import Inference, TermInference
from trilateral.common.data.model.model_file import PartyModel

ACCURACY = ("std_error", "z", "p_value", "lower", "upper")
"""Those columns of the CSV table that are empty unless the job had `inference`; see `TermInference`."""
CSV_COLUMNS = ("term", "weight", "standardised_weight", "odds_ratio_per_unit", "odds_ratio_per_sd", *ACCURACY)
"""Header of the CSV table."""
INTERCEPT = "(intercept)"
NOTES = (
    "This is one party's part. The score of a person is the sum of both parties' parts, including both intercepts.",
    "feature_names_in_ are terms: a numeric column is one term in units of the table, and a category is 0 or 1. "
    "Transforms, splines, interactions, and categories that are one number make terms in units of their own.",
    "`columns` describes how a table becomes terms. A missing number is replaced with `fill`, then clipped to `lower` "
    "and `upper`. Without these steps, rows with missing values or values outside the limits get other scores.",
    "Clipping limits and the knots of splines may be values of single training rows.",
    "The sigmoid of a score is not a calibrated probability. The guest's `calibration` maps scores to probabilities.",
    "`inference`, if the job had it, has the standard error of each term for `coef_` and, at the guest, the fit.",
)


@dataclass(frozen=True)
class Weight:
    """The weight of one term of a model."""

    term: str
    """Name of the term."""
    weight: float
    """Score per unit of the term."""
    standardised: float
    """Score per unit of the standardised term. Equal to `weight` for a term that is not standardised."""
    has_spread: bool
    """Whether the term was standardised, so that its standard deviation is known."""

    @property
    def odds_ratio(self) -> float:
        """Factor on the odds of the positive label per unit of the term, with all other terms unchanged."""
        return _exp(self.weight)

    @property
    def odds_ratio_per_sd(self) -> float | None:
        """Factor on the odds per standard deviation of the clipped values; None if that is not known."""
        return _exp(self.standardised) if self.has_spread else None


def ratio_text(ratio: float) -> str:
    """Return an odds ratio for people: four significant digits, or the first two in which it differs from 1."""
    text = f"{ratio:.4g}"
    if text != "1" or ratio == 1:
        return text
    return f"{ratio:.{1 - math.floor(math.log10(abs(ratio - 1)))}f}"


def weights_of(model: PartyModel) -> list[Weight]:
    """Return the weights of all terms of a model, in order."""
    flags = [flag for column in model.steps.columns for flag in column.standardised]
    pairs = zip(model.weights.items(), model.standardised_weights.values(), flags, strict=True)
    return [Weight(term, weight, beta, flag) for (term, weight), beta, flag in pairs]


def scikit_learn_json(model: PartyModel) -> str:
    """Format a model with the names of the fitted attributes of ``sklearn.linear_model.LogisticRegression``, as JSON.

    `classes_` are 0 and 1 for the negative and the positive label, whatever their values in the guest's table.
    """
    layout: dict[str, object] = {
        "coef_": [list(model.weights.values())],
        "intercept_": [model.intercept],
        "classes_": [0, 1],
        "n_features_in_": len(model.weights),
        "feature_names_in_": list(model.weights),
        "columns": model.preprocessing["columns"],
        "job": model.job.name,
        "run_id": model.run_id,
        "role": model.role.value,
        "trained_loss": model.job.loss_name,
        "notes": NOTES,
    }
    if model.calibration is not None:
        layout["calibration"] = model.calibration.model_dump()
        layout["calibration_summary"] = model.calibration_summary
    if model.inference is not None:
        layout["inference"] = model.inference.model_dump()
    return json.dumps(layout, indent=2) + "\n"


def weights_csv(model: PartyModel) -> str:
    """Format a model as CSV: the header `CSV_COLUMNS`, a line for each term in order, and one for the intercept."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    accuracy = model.inference or Inference()
    for each in weights_of(model):
        per_sd = "" if each.odds_ratio_per_sd is None else repr(each.odds_ratio_per_sd)
        writer.writerow(
            [
                each.term,
                repr(each.weight),
                repr(each.standardised),
                repr(each.odds_ratio),
                per_sd,
                *_figures(accuracy.terms.get(each.term)),
            ]
        )
    writer.writerow([INTERCEPT, repr(model.intercept), "", "", "", *_figures(accuracy.intercept)])
    return text.getvalue()


def _figures(found: TermInference | None) -> list[str]:
    return ["" if found is None else repr(getattr(found, name)) for name in ACCURACY]


def _exp(value: float) -> float:
    try:
        return math.exp(value)
    except OverflowError:
        return math.inf
