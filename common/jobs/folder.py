"""Where one process keeps the files of a job."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from trilateral.common.base.errors import ConfigError
from trilateral.common.base.permissions import explain
from trilateral.common.base.roles import Role

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class JobFolder:
    """The files of one job in a process's state folder.

    Attributes:
        state: the state folder.
        job: name of the job.
    """

    state: Path
    job: str

    @property
    def path(self) -> Path:
        """The folder itself."""
        return self.state / self.job

    @property
    def model(self) -> Path:
        """A party's part of the model; exists once the job has finished."""
        return self.path / "model.json"

    @property
    def history(self) -> Path:
        """A line of JSON for each round; exists once the job has finished."""
        return self.path / "history.jsonl"

    @property
    def unfinished_history(self) -> Path:
        """The history until the job has finished."""
        return self.path / "history.jsonl.partial"


@contextmanager
def writing(role: Role, path: Path) -> Iterator[None]:
    """Within the block, turn an OSError into a public error; the path goes to this process's log only.

    Args:
        role: the role of this process.
        path: the path of the file that is written.

    Raises:
        ConfigError: in place of an OSError.
    """
    try:
        yield
    except OSError as error:
        log.error("cannot write %s: %s", path, explain(error, path))
        raise ConfigError(f"the state folder of the {role} cannot be written: {error.strerror}") from error
