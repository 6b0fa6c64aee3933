"""Errors of the Python API: those that end the wait for a job, and arguments of a wrong type.

    TrilateralError
    ├── JobFailedError       the job failed
    ├── JobStoppedError      somebody stopped the job
    └── PeerError
        └── LostContactError the coordinator is away, and the job continues; see `trilateral.common.process.job_client`

`trilateral.common.base.errors` has the rest of the tree.
"""

from trilateral.common.base.errors import TrilateralError
from trilateral.common.process.job_progress import Progress


def wrong_type(argument: str, expected: str, value: object) -> TypeError:
    """Return the error for an argument of a type that a function does not take."""
    return TypeError(f"{argument}: expected {expected}, not {type(value).__name__}")


def check_names(**names: object) -> None:
    """Check that arguments are names of jobs or datasets: texts.

    Raises:
        TypeError: one is not.
    """
    for argument, name in names.items():
        if not isinstance(name, str):
            raise wrong_type(argument, "a name", name)


class JobFailedError(TrilateralError):
    """The job failed. The text says why.

    Attributes:
        progress: the last state of the job.
    """

    def __init__(self, progress: Progress) -> None:
        super().__init__(f"job {progress.job} failed: {progress.detail}")
        self.progress = progress


class JobStoppedError(TrilateralError):
    """The job ended without a model because an operator stopped it.

    Attributes:
        progress: the last state of the job.
    """

    def __init__(self, progress: Progress) -> None:
        super().__init__(f"job {progress.job}: {progress.detail}")
        self.progress = progress
