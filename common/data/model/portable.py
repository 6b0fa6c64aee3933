"""What a party's part of a model computes, in a form that PMML and ONNX can be written from.

Both are written from the formulas of the terms, so neither knows the kinds of columns.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from trilateral.common.base.errors import DataError
from trilateral.common.data.model.inference import Inference
from trilateral.common.data.model.model_file import PartyModel
from trilateral.common.data.preprocessing.formulas import Formula
from trilateral.common.data.tables.column_reader import missing_numbers

SCORE = "score"
"""Name of the output, unless a column of the table has it."""
NOTES = (
    "This is one party's part. The score of a person is the sum of both parties' parts.",
    "A missing number is NaN, and a missing text is empty. White space around a text must be removed before, and a "
    "whole number in a column of text must have no decimal point.",
    "The sigmoid of a score is not a calibrated probability. The guest's `calibration` maps scores to probabilities.",
)


@dataclass(frozen=True, eq=False)
class Part:
    """A party's part: intercept + sum over the terms of weight * formula."""

    name: str
    """Name of the job."""
    inputs: Mapping[str, bool]
    """The columns of the table by name: whether each is text."""
    terms: Mapping[str, tuple[float, Formula]]
    """The weight and the formula of each term, by its name."""
    intercept: float
    """The constant."""
    missing_texts: tuple[str, ...]
    """The texts that mean a missing value of a column of text."""
    missing_numbers: tuple[float, ...]
    """The numbers that mean a missing value of a column of numbers, besides NaN."""
    properties: Mapping[str, object]
    """Facts about the model that other programs need not know, fit for JSON."""
    std_errors: Mapping[str, float] = field(default_factory=dict)
    """The standard error of the weight of each term, by its name; empty if they are not known."""
    intercept_error: float | None = None
    """The standard error of the constant, if it is known."""

    @classmethod
    def of(cls, model: PartyModel) -> Self:
        """Collect what a party's part computes.

        Args:
            model: the part.

        Raises:
            DataError: the part has no terms, or a column is of a kind that has no formula; the text names it.
        """
        if not model.weights:
            raise DataError(
                f"the {model.role}'s part of the model of job {model.job.name} has no terms: its part of every score is"
                " the intercept, which `trilateral model show` prints"
            )
        steps = model.steps
        texts = {column.name for column in steps.texts}
        formulas = [formula for column in steps.columns for formula in column.formulas]
        pairs = zip(model.weights.values(), formulas, strict=True)
        missing = model.missing or ()
        properties: dict[str, object] = {
            "job": model.job.name,
            "run_id": model.run_id,
            "role": model.role.value,
            "trained_loss": model.job.loss_name,
        }
        if model.calibration is not None:
            properties["calibration"] = model.calibration.model_dump()
            properties["calibration_summary"] = model.calibration_summary
        accuracy = model.inference or Inference()
        return cls(
            name=model.job.name,
            inputs={name: name in texts for name in steps.features},
            terms=dict(zip(model.weights, pairs, strict=True)),
            intercept=model.intercept,
            missing_texts=tuple(dict.fromkeys(["", *missing])),
            missing_numbers=tuple(filter(math.isfinite, missing_numbers(missing))),
            std_errors={term: each.std_error for term, each in accuracy.terms.items()},
            intercept_error=None if accuracy.intercept is None else accuracy.intercept.std_error,
            properties=properties,
        )

    def unused(self, name: str) -> str:
        """Return a name that no column of the table has: the given one, if possible."""
        while name in self.inputs:
            name += "_"
        return name
