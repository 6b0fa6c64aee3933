"""The model of an earlier job, from which a job with `start_from` begins."""

import logging
from pathlib import Path

from trilateral.common.base.errors import DataError
from trilateral.common.base.roles import Role
from trilateral.common.data.model.model_file import NoModelError, PartyModel, load_model
from trilateral.common.jobs.folder import JobFolder

log = logging.getLogger(__name__)


def load_earlier(state: Path, role: Role, name: str) -> PartyModel:
    """Load a party's part of the model from which a job starts.

    Args:
        state: the state folder of the party.
        role: the party.
        name: name of the earlier job.

    Raises:
        DataError: there is no such model, or it cannot be used.
    """
    try:
        model = load_model(JobFolder(state, name).model)
    except NoModelError:
        raise DataError(
            f"there is no model of job {name} to start from: name a finished job, or leave out `start_from`"
        ) from None
    except DataError as error:
        log.error("%s", error)
        raise DataError(f"the model of job {name} cannot be read: see the log of this process") from None
    if model.role is not role:
        raise DataError(f"the file for the model of job {name} holds the part of the other party")
    return model
