"""The host's part of a model, as predictions and online scores use it."""

import logging
from collections.abc import Mapping

import numpy as np

from trilateral.common.base.errors import DataError
from trilateral.common.base.roles import Role
from trilateral.common.config.process import ProcessConfig
from trilateral.common.data.model.model_file import NoModelError, PartyModel, check_half, load_model
from trilateral.common.data.model.reasons import Reasons
from trilateral.common.jobs.folder import JobFolder
from trilateral.common.jobs.ledger import point_of, reason_point
from trilateral.common.rpc.codec import JobKey

log = logging.getLogger(__name__)


def load_own_part(config: ProcessConfig, job: str) -> PartyModel:
    """Load the host's part of a model.

    Args:
        config: of the host.
        job: name of the job that trained the model.

    Raises:
        DataError: there is none, or the file cannot be read; the log says why.
    """
    try:
        return load_model(JobFolder(config.state, job).model)
    except NoModelError:
        raise DataError(f"the host has no model of job {job}") from None
    except DataError as error:
        log.error("%s", error)
        raise DataError(f"the host's model of job {job} cannot be read: see the host's log") from None


def check_other_half(model: PartyModel, run: JobKey, digest: bytes) -> None:
    """Check that the host's part of a model and the guest's belong together.

    Args:
        model: the host's part.
        run: the run of the guest's part.
        digest: `PartyModel.shared_digest` of the guest's part.

    Raises:
        DataError: they do not.
    """
    check_half(model, Role.HOST, run.name, run.run_id.hex())
    if model.shared_digest != digest:
        raise DataError(
            f"the two parts of the model of job {run.name}, run {run.run_id.hex()}, do not belong together: one of the"
            " files was changed"
        )


def reasons_of(model: PartyModel, dataset: str, labels: Mapping[str, str], n_reasons: int) -> Reasons | None:
    """Return what finds the reason codes that the guest gets; None if it gets none.

    Args:
        model: the host's part.
        dataset: name of the dataset.
        labels: `reason_labels` of the dataset.
        n_reasons: how many codes of each row the guest gets.

    Raises:
        DataError: no column of the model has a label.
        ConfigError: the model has several classes.
    """
    if not n_reasons:
        return None
    reasons = Reasons.of_labels(model, labels, n_reasons)
    if not reasons.names:
        raise DataError(
            f"no column of the model of job {model.job.name} has a label in datasets.{dataset}.reason_labels of the"
            " host: the host adds labels, or ask for no reasons of the host"
        )
    return reasons


def score_points(model: PartyModel, reasons: Reasons | None = None) -> list[str]:
    """Return the points at which a model scores rows: one, or one for each class; and one for each reason of a row."""
    steps = model.steps
    points = [point_of(steps, np.array(part.training_weights)) for part in model.parts]
    if reasons is not None:
        points += [reason_point(points[0], reasons.groups, place) for place in range(reasons.n_reasons)]
    return points
