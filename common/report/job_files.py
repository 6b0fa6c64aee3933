"""The files of one job in the state folder of a process, read for its report. The process may be running."""

import hashlib
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trilateral.common.base.errors import ConfigError, DataError, TrilateralError
from trilateral.common.base.permissions import explain
from trilateral.common.base.roles import Role
from trilateral.common.config.job import JobConfig
from trilateral.common.config.process import ProcessConfig
from trilateral.common.config.settings import JOB_NAME
from trilateral.common.data.model.bins_file import BinsFile, load_bins
from trilateral.common.data.model.model_file import PartyModel, load_model
from trilateral.common.jobs.folder import BINS, HISTORY, MODEL, UNFINISHED_HISTORY, JobFolder
from trilateral.common.jobs.journal import Record, read_record
from trilateral.common.jobs.ledger import Entry, Ledger
from trilateral.common.observe.audit import LOG
from trilateral.common.observe.audit_chain import log_files

Line = Mapping[str, Any]
"""A line of a file of JSON lines."""
Moved = Mapping[str, Mapping[str, Mapping[str, int]]]
"""What moved in one direction: counts by peer and kind."""


@dataclass(frozen=True)
class JobFiles:
    """What the files of one process say about one job."""

    role: Role
    job: str
    model: PartyModel | None = None
    """A party's part of the model."""
    bins: BinsFile | None = None
    """What a party got to know in a bins job."""
    sha256: str = ""
    """Of the file of the model or of the bins, as ``sha256sum`` prints it."""
    history: Sequence[Line] = ()
    """The lines of the history of rounds."""
    audit: Sequence[Line] = ()
    """The lines of the audit log about this run of the job and about predictions by its model."""
    config: ProcessConfig | None = None
    """The settings of the process; None for files on their own."""
    record: Record | None = None
    """The entry of the job in the journal, while the journal has it."""
    ledger: Mapping[str, Entry] = field(default_factory=dict)
    """What the other party has learnt about the rows of each dataset of the audit lines, over all jobs."""

    @property
    def run_id(self) -> str:
        """The run of the job, hexadecimal; empty if it is not known."""
        source = self.model or self.bins
        if source is not None:
            return source.run_id
        if self.record is not None:
            return self.record.id.hex()
        return next((str(each["run"]) for each in self.audit if "run" in each), "")

    @property
    def settings(self) -> JobConfig | None:
        """The settings of the job; None if they are not known."""
        source = self.model or self.bins or self.record
        return None if source is None else source.job

    @property
    def outcome(self) -> str:
        """How the job ended, and why; empty if that is not known."""
        if self.record is None:
            return ""
        state = "running or interrupted" if self.record.outcome is None else self.record.outcome.value
        return f"{state}: {self.record.reason}" if self.record.reason else state

    @property
    def ended(self) -> str:
        """When the last session of the job ended, in UTC; empty if it is not known."""
        times = [str(each["time"]) for each in self.audit if is_end_of_job(each)]
        return times[-1][:16].replace("T", " ") + " UTC" if times else ""

    @property
    def identity(self) -> list[tuple[str, str]]:
        """What tells a report of this job from others."""
        facts = [("job", self.job), ("run", self.run_id), ("ended", self.ended), ("state", self.outcome)]
        return [(name, value) for name, value in facts if value]

    @property
    def sent(self) -> Moved:
        """What the sessions of the job have sent, by peer and kind."""
        return self._moved("sent")

    @property
    def received(self) -> Moved:
        """What the sessions of the job have received, by peer and kind."""
        return self._moved("received")

    def _moved(self, direction: str) -> Moved:
        moved: defaultdict[str, defaultdict[str, Counter[str]]] = defaultdict(lambda: defaultdict(Counter))
        for line in filter(is_end_of_job, self.audit):
            for peer, kinds in line.get(direction, {}).items():
                for kind, counts in kinds.items():
                    moved[peer][kind].update(counts)
        return moved


def is_end_of_job(line: Line) -> bool:
    """Return whether a line of the audit log is about the end of a session of a job."""
    return line.get("decision") == "ended" and "rounds" in line


def read_job(config: ProcessConfig, job: str) -> JobFiles:
    """Read the files of a job in the state folder of a process.

    Raises:
        ConfigError, DataError: the process knows no such job, or a file cannot be read.
    """
    if re.fullmatch(JOB_NAME, job) is None:
        raise ConfigError(f"{job!r} is no name of a job: to name a file or a folder, leave out --config")
    folder = JobFolder(config.state, job)
    model, bins, digest = None, None, ""
    is_party = config.role is not Role.COORDINATOR
    path = folder.bins if folder.bins.exists() and not folder.model.exists() else folder.find_model()
    if is_party and path.exists():
        model, bins, digest = _read_result(path)
    result, record, history = model or bins, _record(config.state, job), _history(folder.history)
    audit = list(_audit_lines(config.state / LOG, job))
    if result is None and record is None and not history and not audit:
        raise DataError(
            f"this process knows no job {job}: name a job that has begun, and use the configuration of a process that"
            " took part in it"
        )
    # Without a result, the newest run.
    runs = [each.run_id for each in (model, bins) if each is not None] + ([record.id.hex()] if record else [])
    runs += [str(each["run"]) for each in reversed(audit) if "run" in each]
    audit = [each for each in audit if not runs or each.get("run", runs[0]) == runs[0]]
    ledger = Ledger(config.state, config.role)
    names = dict.fromkeys(str(each["dataset"]) for each in audit if each.get("dataset"))
    return JobFiles(
        role=config.role,
        job=job,
        model=model,
        bins=bins,
        sha256=digest,
        history=history,
        audit=audit,
        config=config,
        record=record if record is not None and record.id.hex() == runs[0] else None,
        ledger={name: ledger.entry(name) for name in names} if is_party else {},
    )


def _record(state: Path, job: str) -> Record | None:
    """Read the journal. A report needs none: what it says of a finished job is in other files too."""
    try:
        return read_record(state, job)
    except (TrilateralError, ValueError):
        return None


def read_path(path: Path) -> JobFiles:
    """Read the file of a model or of bins, and the history beside it if there is one.

    Args:
        path: the file, or the folder of a job.

    Raises:
        DataError: a file cannot be read.
    """
    if path.is_dir():
        files = [path / name for name in (MODEL, BINS) if (path / name).exists()]
        if not files:
            raise DataError(
                f"the folder {path} has no {MODEL} or {BINS}: for a job without a result, or at the coordinator, give"
                " the name of the job and --config"
            )
        path = files[0]
    elif not path.exists():
        raise DataError(f"there is no file {path}: if this is the name of a job, give --config too")
    model, bins, digest = _read_result(path)
    source = model or bins
    assert source is not None  # noqa: S101 (one of the two was read)
    return JobFiles(source.role, source.job.name, model, bins, digest, _history(path.with_name(HISTORY)))


def _read_result(path: Path) -> tuple[PartyModel | None, BinsFile | None, str]:
    is_bins = path.name == BINS
    model, bins = (None, load_bins(path)) if is_bins else (load_model(path), None)
    return model, bins, hashlib.sha256(path.read_bytes()).hexdigest()


def _history(path: Path) -> list[Line]:
    """Read the history of rounds; while a job runs, the lines so far."""
    for each in (path, path.with_name(UNFINISHED_HISTORY)):
        if each.exists():
            return list(_json_lines(each))
    return []


def _audit_lines(log: Path, job: str) -> Iterator[Line]:
    named = json.dumps(job).encode()  # Few lines of a large log are about the job.
    for file in log_files(log):
        for line in _json_lines(file, containing=named):
            if line.get("job") == job:
                yield line


def _json_lines(path: Path, containing: bytes = b"") -> Iterator[Line]:
    """Yield the objects of a file of JSON lines. A line that is not one, such as a torn last line, is left out."""
    try:
        with path.open("rb") as file:
            for text in file:
                if containing in text:
                    try:
                        line = json.loads(text)
                    except ValueError:
                        continue
                    if isinstance(line, dict):
                        yield line
    except OSError as error:
        raise DataError(f"the file {path} cannot be read: {explain(error, path)}") from None
