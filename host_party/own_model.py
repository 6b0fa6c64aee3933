"""The host's part of a model, as predictions and online scores use it."""

import logging

import numpy as np

from trilateral.common.base.errors import DataError
from trilateral.common.base.roles import Role
from trilateral.common.config.process import ProcessConfig
from trilateral.common.data.model.model_file import NoModelError, PartyModel, check_half, load_model
from trilateral.common.jobs.folder import JobFolder
from trilateral.common.jobs.ledger import point_of
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


def score_points(model: PartyModel) -> list[str]:
    """Return the points at which a model scores rows: one, or one for each class."""
    steps = model.steps
    return [point_of(steps, np.array(part.training_weights)) for part in model.parts]
