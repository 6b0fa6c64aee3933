"""Where one process keeps what it has of a job."""

from dataclasses import dataclass
from pathlib import Path


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
