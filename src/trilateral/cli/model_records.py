"""What the commands ``trilateral model`` print as JSON. `docs/json.md` lists the fields."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from trilateral.cli.results import class_names
from trilateral.cli.stability import ColumnShifts, ScoreShift, ScoresOfTwo
from trilateral.common.data.model.bin_figures import BinFigures, bin_figures, information_value
from trilateral.common.data.model.bins_file import BinsFile
from trilateral.common.data.model.calibration_drift import CalibrationDrift, Estimate
from trilateral.common.data.model.comparison import AucComparison, OwnScores, pair_terms, remarks_on
from trilateral.common.data.model.elimination import EliminationStep
from trilateral.common.data.model.export import weights_of
from trilateral.common.data.model.model_file import PartyModel
from trilateral.common.data.model.scorecard import Candidate

Record = dict[str, Any]


def model_record(model: PartyModel) -> Record:
    """Describe a party's part of a model. Fields that `model.json` has too have the same names and meaning."""
    record = _head(model) | {
        "protocol": model.job.protocol,
        "loss": model.loss,
        "loss_name": model.job.loss_name,
        "rounds": model.rounds,
        "epochs": model.epochs,
        "reason": model.reason,
        "data": model.data,
        "left_out": model.left_out,
        "calibration_summary": model.calibration_summary,
    }
    if model.classes is not None:
        parts = zip(class_names(model), model.parts, strict=True)
        record["classes"] = [{"class": name} | _part_record(part) for name, part in parts]
        record["class_metrics"] = model.classes.metrics
        return record
    return (
        record
        | _part_record(model)
        | {
            "calibration": model.calibration,
            "calibration_report": model.calibration_report,
            "search": model.search,
            "evaluations": model.evaluations,
        }
    )


def bins_record(source: BinsFile | PartyModel) -> Record:
    """Describe the bins of a bins job or of a model."""
    return _head(source) | {"left_out": source.left_out, "columns": [_column(each) for each in bin_figures(source)]}


def candidates_record(model: PartyModel, rows: Sequence[Candidate]) -> Record:
    """Describe what helps to decide which terms stay."""
    return _head(model) | {"terms": rows}


def elimination_record(model: PartyModel, steps: Sequence[EliminationStep]) -> Record:
    """Describe a backward elimination, in its order."""
    return _head(model) | {"columns": [each.test.model_dump() | {"stays": each.stays} for each in steps]}


def comparison_record(
    first: PartyModel, second: PartyModel, own: OwnScores | None, scores: ScoresOfTwo | None
) -> Record:
    """Describe two models side by side; see `print_comparison`.

    Raises:
        DataError: the models are parts of different parties.
    """
    pairs = pair_terms(first, second)
    return {
        "first": _head(first) | {"metrics": first.metrics},
        "second": _head(second) | {"metrics": second.metrics},
        "terms": [asdict(pair) | {"difference": pair.difference} for pair in pairs],
        "remarks": remarks_on(first, second),
        "own_scores": own,
        "scores": None
        if scores is None
        else asdict(scores) | {"auc": None if scores.auc is None else _auc_record(scores.auc)},
    }


def drift_record(
    model: PartyModel, columns: ColumnShifts | None, score: ScoreShift | None, drift: CalibrationDrift | None
) -> Record:
    """Describe how far rows have shifted since the training; None for what the command was not asked."""
    return _head(model) | {
        "columns": columns,
        "score": score,
        "calibration": None if drift is None else _drift_record(drift),
    }


def _head(source: BinsFile | PartyModel) -> Record:
    return {"job": source.job.name, "run_id": source.run_id, "role": source.role}


def _part_record(model: PartyModel) -> Record:
    accuracy = {} if model.inference is None else model.inference.terms
    terms = []
    for each in weights_of(model):
        found = accuracy.get(each.term)
        terms.append(
            {
                "term": each.term,
                "weight": each.weight,
                "standardised": each.standardised,
                "odds_ratio": each.odds_ratio,
                "odds_ratio_per_sd": each.odds_ratio_per_sd,
                "std_error": None if found is None else found.std_error,
                "z": None if found is None else found.z,
                "p_value": None if found is None else found.p_value,
                "lower": None if found is None else found.lower,
                "upper": None if found is None else found.upper,
            }
        )
    inference = model.inference
    return {
        "intercept": model.intercept,
        "terms": terms,
        "metrics": model.metrics,
        "evaluation_sets": [
            {"name": each.name, "metrics": each.metrics, "intervals": each.intervals} for each in model.evaluation_sets
        ],
        "inference": None
        if inference is None
        else {
            "intercept": inference.intercept,
            "columns": inference.columns,
            "fit": inference.fit,
            "may_be_separated": inference.may_be_separated,
            "warnings": inference.warnings,
        },
    }


def _column(bins: Sequence[BinFigures]) -> Record:
    return {
        "column": bins[0].column,
        "n_rows": sum(each.n_rows for each in bins),
        "iv": information_value(bins),
        "bins": [{name: value for name, value in asdict(each).items() if name != "column"} for each in bins],
    }


def _auc_record(auc: AucComparison) -> Record:
    lower, upper = auc.interval
    further = {"difference": auc.difference, "lower": lower, "upper": upper, "z": auc.z, "p_value": auc.p_value}
    return asdict(auc) | further


def _drift_record(drift: CalibrationDrift) -> Record:
    return {
        "metrics": drift.metrics,
        "n_expected": drift.n_expected,
        "ratio": drift.ratio,
        "intercept": _estimate(drift.intercept),
        "slope": _estimate(drift.slope),
        "hosmer_lemeshow": drift.hosmer_lemeshow,
        "degrees": drift.degrees,
        "p_value": drift.p_value,
        "groups": drift.groups,
    }


def _estimate(estimate: Estimate | None) -> Record | None:
    if estimate is None:
        return None
    lower, upper = estimate.interval
    return {"value": estimate.value, "error": estimate.error, "lower": lower, "upper": upper}
