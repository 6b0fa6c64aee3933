"""Errors that end the wait for a job.

    TrilateralError
    ├── JobFailedError       the job failed
    ├── JobStoppedError      somebody stopped the job
    └── PeerError
        └── LostContactError the coordinator is away, and the job continues

`trilateral.common.base.errors` has the rest of the tree.
"""

from trilateral.client.progress import Progress
from trilateral.common.base.errors import PeerError, TrilateralError


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


class LostContactError(PeerError):
    """The coordinator no longer reports on a job. The job continues: watch it again once the coordinator is back."""
