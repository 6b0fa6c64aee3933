"""Where one process keeps what it has of a job."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from trilateral.common.base.errors import ConfigError
from trilateral.common.base.roles import Role

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class JobFolder:
    """The files of one job in a process's state folder."""

    state: Path
    job: str

    @property
    def path(self) -> Path:
        """The folder itself."""
        return self.state / self.job

    @property
    def model(self) -> Path:
        """A party's part of the model, once the job has finished."""
        return self.path / "model.json"

    @property
    def history(self) -> Path:
        """A line for each round, once the job has finished."""
        return self.path / "history.jsonl"

    @property
    def unfinished_history(self) -> Path:
        """The history until then."""
        return self.path / "history.jsonl.partial"


@contextmanager
def writing(role: Role, path: Path) -> Iterator[None]:
    """Say in public words what goes wrong with a file of the state folder; the path is for this process's log alone.

    Raises:
        ConfigError: in the place of an OSError.
    """
    try:
        yield
    except OSError as error:
        log.error("%s cannot be written: %s", path, error.strerror)
        raise ConfigError(f"the state folder of the {role} cannot be written: {error.strerror}") from error
