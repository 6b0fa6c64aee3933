"""The file of a party's part of a model: JSON that can be read without this project."""

import hashlib
import platform
from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self

import numpy as np
from pydantic import Field, model_validator
from pydantic_core import from_json

from trilateral.common.base.arrays import FloatArray, FloatVector, Rows
from trilateral.common.base.errors import ConfigError, DataError
from trilateral.common.base.files import write_whole
from trilateral.common.base.permissions import explain
from trilateral.common.base.roles import Role
from trilateral.common.config.dataset import DatasetConfig
from trilateral.common.config.job import JobConfig
from trilateral.common.config.settings import Settings, parse_settings
from trilateral.common.data.model.assessment import (
    Assessment,
    CalibrationReport,
    EvaluatedSet,
    assess,
    evaluate_class,
    evaluate_sets,
)
from trilateral.common.data.model.calibration import AnyCalibration, Calibration, Finite, InterceptOnly, Isotonic, Platt
from trilateral.common.data.model.classes import (
    AnyClassMap,
    ClassMap,
    ClassMetrics,
    Softmax,
    cross_fitted,
    fit_class_map,
    measure_classes,
    odds_of_class,
    rows_of_classes,
)
from trilateral.common.data.model.distributions import NO_DISTRIBUTIONS, Distributions, NumberDistribution
from trilateral.common.data.model.inference import Inference, fit_of, infer
from trilateral.common.data.party_data import PreparedData
from trilateral.common.data.preprocessing import Preprocessing
from trilateral.common.data.preprocessing.few_rows import MIN_ROWS
from trilateral.common.data.tables.column_reader import MISSING
from trilateral.common.data.tables.table_file import table_sha256
from trilateral.common.protocol.block import TrainingBlock
from trilateral.common.protocol.evaluation import HoldoutMetrics
from trilateral.common.protocol.messages import Result
from trilateral.common.protocol.separation import warnings_of

FORMAT = 1
"""The version of the file format."""
_SHARED = {"format", "job", "run_id", "loss", "rounds", "epochs", "reason"}
"""The fields that both parts of one model have in common."""


class DataSummary(Settings):
    """The table that a model was trained on, without any of its values."""

    sha256: str
    """SHA-256 of the table's file, as ``sha256sum`` prints it; of a folder, that of its parts one after the other."""
    n_rows: int
    """Number of rows that both parties have."""
    n_train: int
    """Number of training rows."""
    n_holdout: int
    """Number of hold-out rows, on which the calibration rests. With `holdout: column`, those of the first set."""
    n_rarer_label: str | None = None
    """Guest only: number of training and hold-out rows with the rarer label, as a range such as `10 to 99`. Files of
    release 0.1.0 lack it."""
    weighted: bool = False
    """Guest only: whether training rows counted by weights, of a column or by label. Older files lack it."""
    sets: dict[str, int] = Field(default_factory=dict)
    """Number of rows of each evaluation set, the hold-out rows first. Older files lack it."""


class EvaluatedEpoch(Settings):
    """The quality of the model at one point of the training."""

    round: int
    """The round that evaluated the model."""
    epochs: int
    """Epochs of training until then."""
    metrics: HoldoutMetrics
    """Quality figures on the hold-out rows, with the plain sigmoid as probabilities."""


class ClassPart(Settings):
    """What a party's part of a model has for one class against the rest; see the same fields of `PartyModel`."""

    weights: dict[str, Finite]
    intercept: Finite
    standardised_weights: dict[str, Finite]
    training_weights: list[Finite]
    metrics: HoldoutMetrics | None
    calibration: Calibration | None
    calibration_report: CalibrationReport | None
    evaluation_sets: list[EvaluatedSet] = Field(default_factory=list)
    score_distribution: NumberDistribution | None = None
    """Guest only: the distribution of the score of this class on the hold-out rows; see `Distributions`."""


class Classes(Settings):
    """What a party's part of a model of several classes has beside the weights for the first class."""

    parts: Annotated[list[ClassPart], Field(min_length=3)]
    """For each class, its model against the rest. The first one is also in the fields of `PartyModel` itself."""
    names: list[str] | None = None
    """Guest only: the values of the label, in the order of the parts. The host does not know them."""
    calibration: ClassMap | None = None
    """Guest only: the map from the scores of all classes to probabilities."""
    metrics: ClassMetrics | None = None
    """Guest only: quality of the probabilities on the hold-out rows, if there are any."""


class ComparedPenaltyRow(Settings):
    """A penalty of a cross-validation, and how good the models with it are on rows outside of their training."""

    l1: Finite
    """Strength of the L1 penalty."""
    l2: Finite
    """Strength of the L2 penalty."""
    loss: Finite | None
    """Mean log loss on the folds, without penalty; null if a fit had none, because values were out of range."""
    standard_error: Finite | None
    """Standard error of that mean, from its differences between the folds."""
    auc: Finite | None = None
    """With `choose: auc`, mean AUC on the folds; else null."""
    auc_error: Finite | None = None
    """Standard error of that mean."""
    n_terms: Finite
    """Training columns of both parties with a weight other than 0, without the intercept: the mean over the folds."""
    chosen: bool
    """Whether the model has this penalty."""


def is_by_auc(search: Sequence[ComparedPenaltyRow]) -> bool:
    """Return whether a job chose its penalty by the AUC on the folds."""
    return any(each.auc is not None for each in search)


class _OfClass(NamedTuple):
    """What the probabilities of all classes say about the hold-out rows of one class against the rest."""

    odds: FloatVector
    """Log-odds of the probability of the class, shape (n_holdout,)."""
    rows: Rows
    """The rows that count in its groups of scores."""


class PartyModel(Settings):
    """One party's part of a model.

    The score u of a person is the sum of both parties' parts. For values that are present and within the clipping
    limits, a part is

        intercept + sum over the terms of weight * value

    `preprocessing` describes how other values are treated.
    """

    format: Literal[1] = 1
    """The version of the file format."""
    role: Role
    """The party whose part this is."""
    job: JobConfig
    """The job that trained the model."""
    run_id: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
    """The run of the job, hexadecimal. Only the two parts of one model have the same run."""
    versions: dict[str, str]
    """Versions of trilateral, numpy and Python at training."""
    data: DataSummary
    """The table that the model was trained on."""
    weights: dict[str, Finite]
    """Weights by term, in score per unit of the table."""
    intercept: Finite
    """The constant part of the score. The host has one too: it compensates for the means of its features."""
    standardised_weights: dict[str, Finite]
    """beta: weights by term, of clipped and standardised values, so that they can be compared with each other."""
    training_weights: list[Finite]
    """w: weights of the training columns."""
    preprocessing: dict[str, Any]
    """The fitted preprocessing, as from `Preprocessing.to_dict`."""
    left_out: dict[str, str] = Field(default_factory=dict)
    """Features that say too little in the training rows, such as constant columns, and have no weight: the reason by
    name. Row numbers and row names are not features."""
    distributions: Distributions | None = None
    """How the training rows were distributed, to tell later how far other rows have shifted. Files of release 0.1.0
    lack it."""
    missing: list[str] | None = MISSING
    """The texts that meant a missing category at training. An empty text always does. Null if the table's file marked
    missing values itself."""
    loss: Finite
    """Loss of the whole model on the training rows, including the penalty: the Taylor loss if the job's `protocol` is
    `paillier`, and the logistic loss, weighted as the rows are, if it is `shares`."""
    rounds: int
    """Rounds of the training."""
    epochs: int
    """Epochs of the training."""
    reason: str
    """Why training ended."""
    metrics: HoldoutMetrics | None
    """Guest only: quality of the whole model on the hold-out rows, if there are any."""
    calibration: Calibration | None
    """Guest only: the map from scores of the whole model to probabilities."""
    calibration_report: CalibrationReport | None
    """Guest only: the reliability before and after calibration, if the model was calibrated."""
    evaluation_sets: list[EvaluatedSet] = Field(default_factory=list)
    """Guest only: quality of the whole model on each evaluation set, with confidence intervals. `metrics` has the
    figures of the first one. Older files lack it."""
    evaluations: list[EvaluatedEpoch]
    """Guest only: the evaluations during the training, if the job has any. Under the protocol on shares, only the
    coordinator is told them."""
    classes: Classes | None = None
    """In a job with classes: the models of all classes. `loss` is then the mean of their losses."""

    search: list[ComparedPenaltyRow] = Field(default_factory=list)
    """Guest only: the penalties that a job with `folds` has compared, the strongest first."""
    inference: Inference | None = None
    """The accuracy of the weights, if the job has `inference`. Files of release 0.1.0 lack it."""

    @classmethod
    def of(
        cls, role: Role, job: JobConfig, data: PreparedData, table: DatasetConfig, result: Result, *, run_id: str
    ) -> Self:
        """Build a party's part of a model from the result of a training.

        Args:
            role: the party.
            job: the job.
            data: the party's rows and fitted preprocessing.
            table: the settings of the party's table.
            result: the result of the party's state machine.
            run_id: the run of the job, 32 hexadecimal digits.

        Raises:
            DataError, OSError: the table cannot be read for its hash.
        """
        if job.classes is not None:
            return cls._of_classes(role, job, data, table, result, run_id=run_id)
        return cls._of_one(role, job, data, table, result, run_id=run_id)

    @classmethod
    def _of_one(
        cls,
        role: Role,
        job: JobConfig,
        data: PreparedData,
        table: DatasetConfig,
        result: Result,
        *,
        run_id: str,
        of_class: _OfClass | None = None,
    ) -> Self:
        block = data.block
        steps = data.preprocessing
        weights, intercept = steps.to_features(result.coef)
        assessment: Assessment | None = None
        evaluated: list[EvaluatedSet] = []
        of_scores: NumberDistribution | None = None
        if table.label is not None and block.labels is not None and block.holdout_labels is not None:
            scores = np.empty(0) if result.holdout_scores is None else result.holdout_scores
            n_holdout = len(block.holdout_labels)
            if n_holdout >= 2 * MIN_ROWS and len(scores) >= n_holdout:
                of_scores = NumberDistribution.of(scores[:n_holdout])
            assessment = assess(
                scores[:n_holdout],
                block.holdout_labels,
                table.label,
                block.labels,
                intercept=job.intercept,
                is_logistic=job.protocol == "shares",
                sample_weights=block.sample_weights,
            )
            figures: dict[str, Any] = {"threshold": table.label.threshold, "seed": job.seed}
            if of_class is not None:
                of_set = evaluate_class(
                    "holdout", scores, block.holdout_labels, of_class.odds, of_class.rows, **figures
                )
                evaluated, assessment = [of_set], replace(assessment, metrics=of_set.metrics)
            else:
                further = [] if block.test_labels is None else [block.test_labels]
                labels = np.concatenate([block.holdout_labels, *further])
                evaluated = evaluate_sets(data.sets if len(scores) else {}, scores, labels, assessment, **figures)
        return cls(
            role=role,
            job=job,
            run_id=run_id,
            versions={
                "trilateral": version("trilateral"),
                "numpy": version("numpy"),
                "python": platform.python_version(),
            },
            data=DataSummary(
                sha256=table_sha256(table.path),
                n_rows=data.n_rows,
                n_train=len(block.columns),
                n_holdout=len(block.holdout_columns),
                n_rarer_label=_range_of_rarer_label(block),
                weighted=block.sample_weights is not None,
                sets=dict(data.sets),
            ),
            weights=dict(zip(steps.terms, weights.tolist(), strict=True)),
            intercept=intercept,
            standardised_weights=dict(zip(steps.terms, steps.to_standardised(result.coef).tolist(), strict=True)),
            training_weights=result.coef.tolist(),
            preprocessing=steps.to_dict(),
            left_out=dict(steps.left_out),
            distributions=Distributions(columns=dict(data.distributions), score=of_scores),
            missing=None if data.missing is None else list(data.missing),
            loss=result.loss,
            rounds=result.rounds,
            epochs=result.epochs,
            reason=result.reason,
            inference=_infer(job, data, result),
            metrics=assessment.metrics if assessment else None,
            calibration=assessment.calibration if assessment else None,
            calibration_report=assessment.report if assessment else None,
            evaluation_sets=evaluated,
            evaluations=[
                EvaluatedEpoch(round=each.key.round, epochs=each.epochs, metrics=each.metrics)
                for each in result.evaluations
            ],
            search=[
                ComparedPenaltyRow(
                    l1=each.l1,
                    l2=each.l2,
                    loss=each.loss,
                    standard_error=each.standard_error,
                    auc=each.auc,
                    auc_error=each.auc_error,
                    n_terms=each.n_terms,
                    chosen=each.is_chosen,
                )
                for each in result.compared
            ],
        )

    @classmethod
    def _of_classes(
        cls, role: Role, job: JobConfig, data: PreparedData, table: DatasetConfig, result: Result, *, run_id: str
    ) -> Self:
        blocks, single = data.block.one_vs_rest(), job.model_copy(update={"classes": None})
        stacked = result.holdout_scores
        scores = None if stacked is None else stacked.reshape(len(blocks), -1)
        names, mapped, metrics = None, None, None
        of_classes: list[_OfClass | None] = [None] * len(blocks)
        if table.label is not None and data.block.holdout_labels is not None and scores is not None:
            names, numbers = table.label.classes, data.block.holdout_labels.astype(np.int64)
            mapped = fit_class_map(scores.T, numbers, table.label.calibration)
            if len(numbers):
                logs = cross_fitted(scores.T, numbers, mapped)
                metrics = measure_classes(scores.T, numbers, logs)
                rows = rows_of_classes(len(numbers), len(blocks), job.seed)
                of_classes = [_OfClass(odds_of_class(logs, number), own) for number, own in enumerate(rows)]
        models = [
            cls._of_one(
                role,
                single,
                replace(data, block=block),
                table,
                replace(result, coef=coef, holdout_scores=None if scores is None else scores[number]),
                run_id=run_id,
                of_class=of_classes[number],
            )
            for number, (block, coef) in enumerate(zip(blocks, np.split(result.coef, len(blocks)), strict=True))
        ]
        parts = [ClassPart(**{name: getattr(model, name) for name in ClassPart.model_fields}) for model in models]
        classes = Classes(parts=parts, names=names, calibration=mapped, metrics=metrics)
        return models[0].model_copy(update={"job": job, "classes": classes})

    def of_class(self, name: str) -> "PartyModel":
        """Return the model of one class against the rest.

        Args:
            name: a value of the label at the guest, or the number of the class from 1 up.

        Raises:
            ConfigError: there is no such class; the text names those that there are.
        """
        if self.classes is not None:
            for found in (self._class_names, self._class_numbers):
                if name in found:
                    return self._with(self.classes.parts[found.index(name)])
        has = f"the classes {', '.join(self._class_names)}" if self.classes is not None else "one model for both labels"
        raise ConfigError(f"the model of job {self.job.name} has no class {name}: it has {has}")

    def class_name(self, of_class: str) -> str:
        """Return what the columns of a class are called in a file of scores.

        Args:
            of_class: as for `of_class`.
        """
        names, numbers = self._class_names, self._class_numbers
        return names[numbers.index(of_class)] if of_class in numbers and of_class not in names else of_class

    @property
    def _class_numbers(self) -> list[str]:
        return [str(number) for number in range(1, len(self.parts) + 1)]

    @property
    def _class_names(self) -> list[str]:
        """The values of the label or, at the host, the numbers of the classes."""
        return (self.classes.names if self.classes is not None else None) or self._class_numbers

    def one(self, of_class: str | None) -> "PartyModel":
        """Return the model of one class, if this one has classes, and this one itself otherwise; see `of_class`.

        Raises:
            ConfigError: the class is not named, or there is no such class.
        """
        if of_class is not None:
            return self.of_class(of_class)
        if self.classes is not None:
            raise ConfigError(
                f"the model of job {self.job.name} has several classes: name one of them, with --class or"
                f" `of_class`: {', '.join(self._class_names)}"
            )
        return self

    def _with(self, part: ClassPart) -> "PartyModel":
        own = {name: getattr(part, name) for name in ClassPart.model_fields}
        score = own.pop("score_distribution")
        distributions = self.distributions and self.distributions.model_copy(update={"score": score})
        return self.model_copy(update=own | {"distributions": distributions, "classes": None})

    @property
    def known_distributions(self) -> Distributions:
        """The distributions of the columns and of the score.

        Raises:
            DataError: an earlier release wrote the file, without any.
        """
        if self.distributions is None:
            raise DataError(NO_DISTRIBUTIONS)
        return self.distributions

    @property
    def score_distribution(self) -> NumberDistribution | None:
        """The distribution of the score on the hold-out rows, if there is one."""
        return None if self.distributions is None else self.distributions.score

    @property
    def parts(self) -> "list[PartyModel]":
        """The models of the classes, each against the rest; this model itself if the label has two values."""
        return [self] if self.classes is None else [self._with(part) for part in self.classes.parts]

    @property
    def score_weights(self) -> FloatArray:
        """The weights of the training columns, shape (n_columns,), or (n_columns, n_classes) in a model of classes."""
        weights = np.array([part.training_weights for part in self.parts], dtype=np.float64).T
        return weights if self.classes is not None else weights[:, 0]

    @model_validator(mode="after")
    def _check(self) -> "PartyModel":
        try:
            steps = self.steps
            n_columns = steps.n_columns
            is_finite = all(np.isfinite(each).all() for each in (steps.mean, steps.scale, steps.penalty))
            if not is_finite or not (steps.scale > 0).all():
                raise ValueError
        except DataError as error:
            raise ValueError(str(error)) from None
        except (LookupError, TypeError, ValueError, AttributeError):
            raise ValueError("`preprocessing` does not hold a party's fitted preprocessing") from None
        if len(self.training_weights) != n_columns:
            raise ValueError(
                f"`training_weights` has {len(self.training_weights)} numbers, but `preprocessing` makes {n_columns} "
                "columns"
            )
        if list(self.weights) != list(self.standardised_weights):
            raise ValueError("`weights` and `standardised_weights` have different terms")
        for part in [] if self.classes is None else self.classes.parts:
            if len(part.training_weights) != n_columns or list(part.weights) != list(self.weights):
                raise ValueError("`classes.parts` have other terms or training columns than the model")
        if self.classes is not None and (self.classes.names is None) != (self.role is Role.HOST):
            raise ValueError("the guest's part must have the names of its classes, and the host's part must not")
        if (self.calibration is None) != (self.role is Role.HOST):
            raise ValueError("the guest's part must have a `calibration`, and the host's part must not")
        return self

    @property
    def steps(self) -> Preprocessing:
        """The fitted preprocessing, which turns this party's table into the columns of `training_weights`."""
        return Preprocessing.from_dict(self.preprocessing)

    @property
    def calibration_summary(self) -> str | None:
        """How far the probabilities can be trusted, in words; None at the host."""
        if self.classes is not None:
            return None if self.classes.calibration is None else _describe_map(self.classes.calibration)
        if self.calibration is None:
            return None
        summary = _describe(self.calibration)
        n_rarer = self.data.n_rarer_label
        return summary if n_rarer is None else f"{summary}; {n_rarer} of the model's rows have the rarer label"

    @property
    def shared_digest(self) -> bytes:
        """SHA-256, 32 bytes, of the fields that both parts of one model have in common. It covers no weight."""
        return hashlib.sha256(self.model_dump_json(include=_SHARED).encode()).digest()


def _infer(job: JobConfig, data: PreparedData, result: Result) -> Inference | None:
    """Return the accuracy of a party's weights, and at the guest the fit of the model."""
    told, block = result.inference, data.block
    if told is None:
        return None
    found, may_be_separated = warnings_of(
        result.signs, max_score=job.max_score, is_known=told.may_be_separated, depends=told.depends
    )
    warnings = list(dict.fromkeys([*told.warnings, *found]))
    inference = infer(data.preprocessing, result.coef, told.covariance, warnings, may_be_separated=may_be_separated)
    if block.labels is None:
        return inference
    n_parameters = len(result.coef) + result.n_peer_columns
    fit = fit_of(result.loss, block.labels, block.sample_weights, n_parameters, intercept=job.intercept)
    return inference.model_copy(update={"fit": fit})


def _describe(calibration: AnyCalibration) -> str:
    match calibration:
        case Platt():
            return "calibrated by Platt scaling on the hold-out rows"
        case Isotonic():
            return "calibrated by isotonic regression on the hold-out rows"
        case InterceptOnly(reason=reason):
            return (
                "calibrated on average only: an offset takes their mean to the rate of positive rows, and no slope was "
                f"fitted, because {reason}"
            )
        case _:
            return f"not calibrated, and possibly far from the rate of positive rows: {calibration.reason}"


def _describe_map(mapped: AnyClassMap) -> str:
    if isinstance(mapped, Softmax):
        return "calibrated by a softmax of the scores of all classes on the hold-out rows"
    return f"not calibrated, but the sigmoids of the scores divided by their sum: {mapped.reason}"


def _range_of_rarer_label(block: TrainingBlock) -> str | None:
    """Return the number of rows with the rarer label to a power of ten, because files of scores tell it to others."""
    if block.labels is None or block.holdout_labels is None:
        return None
    n_positive = int((block.labels > 0).sum() + (block.holdout_labels > 0).sum())
    n_rarer = min(n_positive, len(block.labels) + len(block.holdout_labels) - n_positive)
    digits = len(str(n_rarer))
    return "fewer than 10" if digits == 1 else f"{10 ** (digits - 1)} to {10**digits - 1}"


def check_half(model: PartyModel, role: Role, job: str, run_id: str) -> None:
    """Check that a model is a party's part of one run of a job.

    Args:
        model: the part.
        role: the expected party.
        job: the expected name of the job.
        run_id: the expected run, 32 hexadecimal digits.

    Raises:
        DataError: the part belongs to another party, job or run; the text names both.
    """
    if (model.role, model.job.name, model.run_id) != (role, job, run_id):
        raise DataError(
            f"the file for the {role}'s part of job {job}, run {run_id}, holds the {model.role}'s part of job "
            f"{model.job.name}, run {model.run_id}: both parties need their parts of the same run"
        )


class NoModelError(DataError):
    """There is no model file."""


def save_model(path: Path, model: PartyModel) -> None:
    """Write a model atomically, readable by this user only.

    Raises:
        OSError: the file cannot be written.
    """
    write_whole(path, model.model_dump_json(indent=2) + "\n")


def load_model(path: Path) -> PartyModel:
    """Read a file that `save_model` wrote. The file holds data only; loading it runs no code.

    Args:
        path: the file.

    Raises:
        NoModelError: the file does not exist.
        DataError: the file cannot be read, or is not a valid model of this format; the text has one line for each
            problem.
    """
    try:
        content = from_json(path.read_bytes())
    except FileNotFoundError:
        raise NoModelError(
            f"there is no model file {path}: name a finished job, and use the configuration of the process that has "
            "its part"
        ) from None
    except OSError as error:
        raise DataError(f"the model file {path} cannot be read: {explain(error, path)}") from None
    except ValueError:
        raise DataError(f"{path} is not a model file: it is not JSON") from None
    if not isinstance(content, dict):
        raise DataError(f"{path} is not a model file: it has no fields")
    if content.get("format") != FORMAT:
        raise DataError(f"{path} is not a model file that this version can read: its `format` is not {FORMAT}")
    try:
        return parse_settings(PartyModel, content, path.name)
    except ConfigError as error:
        raise DataError(f"{path} is not a model file that this version can read:\n{_indented(error)}") from None


def _indented(error: ConfigError) -> str:
    return "\n".join(f"  {line}" for line in str(error).splitlines())
