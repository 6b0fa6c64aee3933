"""Where one process keeps the files of a job.

All job folders are below `JOBS` in the state folder, so that no name of a job is the name of another file there.
"""

import errno
import logging
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from trilateral.common.base.errors import ConfigError
from trilateral.common.base.files import sync_folder
from trilateral.common.base.permissions import explain
from trilateral.common.base.roles import Role
from trilateral.common.config.settings import JOB_NAME

log = logging.getLogger(__name__)

JOBS = "jobs"
"""Name of the folder of all job folders, in the state folder."""
MODEL, BINS = "model.json", "bins.json"
HISTORY, UNFINISHED_HISTORY = "history.jsonl", "history.jsonl.partial"


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
        return self.state / JOBS / self.job

    @property
    def model(self) -> Path:
        """A party's part of the model; exists once the job has finished."""
        return self.path / MODEL

    @property
    def bins(self) -> Path:
        """What a party gets to know in a bins job; exists once the job has finished."""
        return self.path / BINS

    @property
    def history(self) -> Path:
        """A line of JSON for each round; exists once the job has finished."""
        return self.path / HISTORY

    @property
    def unfinished_history(self) -> Path:
        """The history until the job has finished."""
        return self.path / UNFINISHED_HISTORY

    def make(self) -> None:
        """Make the folder, and the folder of all job folders, for this user only.

        Raises:
            OSError: a folder cannot be made, or the file system does not distinguish its name from that of another job.
        """
        self.state.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.path.parent.mkdir(mode=0o700, exist_ok=True)
        self.path.mkdir(mode=0o700, exist_ok=True)
        if self.job not in os.listdir(self.path.parent):
            raise OSError(errno.EEXIST, f"another job has the folder {self.job} in other letter case")

    def find_model(self) -> Path:
        """Return the path to read the model from, for commands that run without the server.

        Release 0.1.0 kept it directly in the state folder. It is still there until a server of this release starts.
        """
        before = self.state / self.job / MODEL
        return before if before.exists() and not self.model.exists() else self.model


def move_old_folders(state: Path, role: Role) -> None:
    """Move the job folders of release 0.1.0, which are directly in the state folder, to below `JOBS`.

    A file moves only if there is none at its new place, so an interrupted move continues at the next start.

    Args:
        state: the state folder, which this process has locked.
        role: the role of this process.

    Raises:
        ConfigError: a folder or a file cannot be moved.
    """
    with writing(role, state):
        for old in sorted(state.iterdir()):
            if re.fullmatch(JOB_NAME, old.name) is None or not old.is_dir():
                continue
            # A job of 0.1.0 may be called `jobs` itself, so what tells an old job folder is the files in it.
            files = [old / name for name in (MODEL, HISTORY, UNFINISHED_HISTORY) if (old / name).is_file()]
            if files:
                _move(files, JobFolder(state, old.name))
                with suppress(OSError):  # It has other files, or it is the folder of all job folders.
                    old.rmdir()


def _move(files: Sequence[Path], folder: JobFolder) -> None:
    folder.make()
    for file in files:
        new = folder.path / file.name
        if new.exists():
            log.warning("%s is not moved to %s, because there is another file: keep one of them", file, new)
        else:
            file.rename(new)
            log.info("%s of release 0.1.0 is now %s", file, new)
    for changed in (folder.path, folder.path.parent, folder.state):
        sync_folder(changed)


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
