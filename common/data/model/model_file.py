"""A party's part of a model as a file: JSON, readable without this project."""

import hashlib
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import Field, model_validator
from pydantic_core import from_json

from trilateral.common.base.errors import ConfigError, DataError
from trilateral.common.base.files import write_whole
from trilateral.common.base.roles import Role
from trilateral.common.config.dataset import DatasetConfig
from trilateral.common.config.job import JobConfig
from trilateral.common.config.settings import Settings, parse_settings
from trilateral.common.data.model.assessment import Assessment, CalibrationReport, assess
from trilateral.common.data.model.calibration import Calibration, Finite
from trilateral.common.data.party_data import PartyData
from trilateral.common.data.preprocessing import Preprocessing
from trilateral.common.protocol.evaluation import HoldoutMetrics
from trilateral.common.protocol.messages import Result

FORMAT = 1
_SHARED = {"format", "job", "run_id", "loss", "rounds", "epochs", "reason"}


class DataSummary(Settings):
    """Which rows the model was made from, without naming one."""

    sha256: str
    """Of the table's file, as ``sha256sum`` prints it."""
    n_rows: int
    n_train: int
    n_holdout: int


class EvaluatedEpoch(Settings):
    """How good the model was during the training."""

    round: int
    """The round that evaluated it."""
    epochs: int
    """Of the training until then."""
    metrics: HoldoutMetrics
    """Of 1 / (1 + exp(-u)), nothing calibrated."""


class PartyModel(Settings):
    """One party's part of a model.

    The score u of a person is the sum of both parties' parts, and for values that are not missing
    and within the clipping limits (`preprocessing` says the rest)

        part = intercept + sum over the terms of weight * value
    """

    format: Literal[1] = 1
    role: Role
    job: JobConfig
    run_id: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
    """Of the run that made it, hexadecimal: both parts of one model have the same, and no others."""
    versions: dict[str, str]
    data: DataSummary
    weights: dict[str, Finite]
    """In units of the features as they are in the table."""
    intercept: Finite
    """The host has one too: it makes up for the means of its features."""
    standardised_weights: dict[str, Finite]
    """beta, of the clipped and standardised features: comparable with each other."""
    training_weights: list[Finite]
    """w, of the training columns."""
    preprocessing: dict[str, Any]
    """See `Preprocessing.to_dict`."""
    loss: Finite
    """Taylor loss, penalty included, on the training rows of both parties' parts together."""
    rounds: int
    epochs: int
    reason: str
    """Why training ended."""
    metrics: HoldoutMetrics | None
    """At the guest, of both parts together on the hold-out rows, if there are any."""
    calibration: Calibration | None
    """At the guest: how scores of both parts together become probabilities."""
    calibration_report: CalibrationReport | None
    """At the guest, if something was calibrated."""
    evaluations: list[EvaluatedEpoch]
    """At the guest, those during the training, if the job asked for any."""

    @classmethod
    def of(
        cls, role: Role, job: JobConfig, data: PartyData, table: DatasetConfig, result: Result, *, run_id: str
    ) -> Self:
        """Make a party's part out of what its state machine came to."""
        block = data.block
        steps = block.preprocessing
        weights, intercept = steps.to_features(result.coef)
        assessment: Assessment | None = None
        if table.label is not None and block.holdout_labels is not None:
            scores = np.empty(0) if result.holdout_scores is None else result.holdout_scores
            assessment = assess(scores, block.holdout_labels, table.label)
        with table.path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
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
                sha256=digest, n_rows=len(data.ids), n_train=len(block.columns), n_holdout=len(block.holdout_columns)
            ),
            weights=dict(zip(steps.terms, weights.tolist(), strict=True)),
            intercept=intercept,
            standardised_weights=dict(zip(steps.terms, steps.to_standardised(result.coef).tolist(), strict=True)),
            training_weights=result.coef.tolist(),
            preprocessing=steps.to_dict(),
            loss=result.loss,
            rounds=result.rounds,
            epochs=result.epochs,
            reason=result.reason,
            metrics=assessment.metrics if assessment else None,
            calibration=assessment.calibration if assessment else None,
            calibration_report=assessment.report if assessment else None,
            evaluations=[
                EvaluatedEpoch(round=each.key.round, epochs=each.epochs, metrics=each.metrics)
                for each in result.evaluations
            ],
        )

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
            raise ValueError("`preprocessing` is not what a party's preprocessing was saved as") from None
        if len(self.training_weights) != n_columns:
            raise ValueError(
                f"`training_weights` has {len(self.training_weights)} numbers where `preprocessing` makes {n_columns} "
                "columns"
            )
        if list(self.weights) != list(self.standardised_weights):
            raise ValueError("`weights` and `standardised_weights` are not of the same features")
        if (self.calibration is None) != (self.role is Role.HOST):
            raise ValueError("`calibration` belongs into the guest's part, and there alone")
        return self

    @property
    def steps(self) -> Preprocessing:
        """What turns this party's table into the columns that `training_weights` belong to."""
        return Preprocessing.from_dict(self.preprocessing)

    @property
    def shared_digest(self) -> bytes:
        """SHA-256 of what both parties' parts of one model have in common, 32 bytes; no value of either part."""
        return hashlib.sha256(self.model_dump_json(include=_SHARED).encode()).digest()


def check_half(model: PartyModel, role: Role, job: str, run_id: str) -> None:
    """Check that a party's part is of this job and of this run of it, in hexadecimal.

    Raises:
        DataError: it is of another; both are named.
    """
    if (model.role, model.job.name, model.run_id) != (role, job, run_id):
        raise DataError(
            f"the file of the {role}'s part of the model of job {job}, run {run_id}, holds the {model.role}'s part of "
            f"job {model.job.name}, run {model.run_id}: both parties need their parts of one run"
        )


def save_model(path: Path, model: PartyModel) -> None:
    """Write the file, whole and for this user alone."""
    write_whole(path, model.model_dump_json(indent=2) + "\n")


def load_model(path: Path) -> PartyModel:
    """Read a file that `save_model` wrote. It is data and nothing else: no code in it is run.

    Raises:
        DataError: there is none, or it is not a model of this format; a line for each thing that is wrong.
    """
    try:
        content = from_json(path.read_bytes())
    except FileNotFoundError:
        raise DataError(f"there is no model file {path}") from None
    except OSError as error:
        raise DataError(f"the model file {path} cannot be read: {error.strerror}") from None
    except ValueError:
        raise DataError(f"{path} is not a model file: it is not JSON") from None
    if not isinstance(content, dict):
        raise DataError(f"{path} is not a model file: it has no fields")
    if content.get("format") != FORMAT:
        raise DataError(f"{path} is not a model file that this version reads: its `format` is not {FORMAT}")
    try:
        return parse_settings(PartyModel, content, path.name)
    except ConfigError as error:
        raise DataError(f"{path} is not a model file that this version reads:\n{_indented(error)}") from None


def _indented(error: ConfigError) -> str:
    return "\n".join(f"  {line}" for line in str(error).splitlines())
