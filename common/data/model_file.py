"""A party's part of a model as a file: JSON, readable without this project."""

import hashlib
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import ValidationError

from common.config.dataset import DatasetConfig
from common.config.job import JobConfig
from common.config.settings import Settings
from common.data.block import PartyData
from common.data.metrics import HoldoutMetrics, measure
from common.data.preprocessing import Preprocessing
from common.errors import DataError
from common.files import write_whole
from common.protocol.messages import Result
from common.roles import Role


class DataSummary(Settings):
    """Which rows the model was made from, without naming one."""

    sha256: str
    """Of the table's file, as ``sha256sum`` prints it."""
    n_rows: int
    n_train: int
    n_holdout: int


class PartyModel(Settings):
    """One party's part of a model.

    The score u of a person is the sum of both parties' parts, and for values that are not missing
    and within the clipping limits (`preprocessing` says the rest)

        part = intercept + sum over the features of weight * value
    """

    format: Literal[1] = 1
    role: Role
    job: JobConfig
    versions: dict[str, str]
    data: DataSummary
    weights: dict[str, float]
    """In units of the features as they are in the table."""
    intercept: float
    """The host has one too: it makes up for the means of its features."""
    standardised_weights: dict[str, float]
    """beta, of the clipped and standardised features: comparable with each other."""
    training_weights: list[float]
    """w, of the training columns."""
    preprocessing: dict[str, Any]
    """See `Preprocessing.to_dict`."""
    loss: float
    """Taylor loss, penalty included, on the training rows of both parties' parts together."""
    rounds: int
    epochs: int
    reason: str
    """Why training ended."""
    metrics: HoldoutMetrics | None
    """At the guest, of both parts together on the hold-out rows, if there are any."""

    @classmethod
    def of(cls, role: Role, job: JobConfig, data: PartyData, table: DatasetConfig, result: Result) -> Self:
        """Make a party's part out of what its state machine came to."""
        block = data.block
        steps = block.preprocessing
        weights, intercept = steps.to_features(result.coef)
        metrics = None
        if block.holdout_labels is not None and result.holdout_scores is not None and len(result.holdout_scores):
            metrics = measure(result.holdout_scores, block.holdout_labels)
        with table.path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        return cls(
            role=role,
            job=job,
            versions={
                "trilateral": version("trilateral"),
                "numpy": version("numpy"),
                "python": platform.python_version(),
            },
            data=DataSummary(
                sha256=digest, n_rows=len(data.ids), n_train=len(block.columns), n_holdout=len(block.holdout_columns)
            ),
            weights=dict(zip(steps.features, weights.tolist(), strict=True)),
            intercept=intercept,
            standardised_weights=dict(zip(steps.features, steps.to_standardised(result.coef).tolist(), strict=True)),
            training_weights=result.coef.tolist(),
            preprocessing=steps.to_dict(),
            loss=result.loss,
            rounds=result.rounds,
            epochs=result.epochs,
            reason=result.reason,
            metrics=metrics,
        )

    @property
    def steps(self) -> Preprocessing:
        """What turns this party's table into the columns that `training_weights` belong to."""
        return Preprocessing.from_dict(self.preprocessing)


def save_model(path: Path, model: PartyModel) -> None:
    """Write the file, whole and for this user alone."""
    write_whole(path, model.model_dump_json(indent=2) + "\n")


def load_model(path: Path) -> PartyModel:
    """Read a file that `save_model` wrote.

    Raises:
        DataError: there is none, or it is not a model of this format.
    """
    try:
        return PartyModel.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        raise DataError(f"there is no model file {path}") from None
    except ValidationError as error:
        where = ".".join(map(str, error.errors()[0]["loc"])) or "the whole"
        raise DataError(f"{path} is not a model file that this version reads: look at {where}") from None
