"""The shifts of the tables that a model has scored: a file of a job's folder with a line for each prediction."""

import json
import logging
import os
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from trilateral.common.base.permissions import explain
from trilateral.common.data.model.distributions import Shift
from trilateral.common.jobs.folder import JOBS, JobFolder

log = logging.getLogger(__name__)

DRIFT = "drift.jsonl"
"""Name of the file."""
_MAX_LINE = 1 << 20
"""A longer line is not read. A column takes some 50 bytes."""


def keep_shift(folder: JobFolder, dataset: str, shift: Shift) -> None:
    """Append the shift of a table to the file, unless the table has too few rows. A failure is only logged.

    Args:
        folder: the folder of the job that trained the model.
        dataset: name of the table that was scored.
        shift: of the table.
    """
    reported = shift.reported
    if reported is None:
        return
    line = {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "dataset": dataset,
        "n_rows": reported.n_rows,
        "n_scored": reported.n_scored,
        "psi": reported.psi,
        "csi": dict(reported.csi),
    }
    path = folder.path / DRIFT
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "ab") as file:
            file.write(json.dumps(line).encode() + b"\n")
    except OSError as error:
        log.warning("job %s: cannot write %s: %s", folder.job, path, explain(error, path))


def newest_shifts(state: Path, most: int) -> dict[str, Shift]:
    """Return the newest shift of each job in a state folder, by name; of at most this many jobs, the newest ones.

    A file that cannot be read is left out.
    """
    files: list[tuple[float, Path]] = []
    with suppress(OSError):
        for folder in (state / JOBS).iterdir():
            with suppress(OSError):
                files.append(((folder / DRIFT).stat().st_mtime, folder))
    return {folder.name: shift for _, folder in sorted(files)[-most:] for shift in _newest(folder / DRIFT)}


def _newest(path: Path) -> Iterator[Shift]:
    """Yield the shift of the last line, if there is one."""
    with suppress(OSError, ValueError, KeyError, TypeError, IndexError):
        with path.open("rb") as file:
            file.seek(max(path.stat().st_size - _MAX_LINE, 0))
            line = json.loads(file.read().splitlines()[-1])
        yield Shift(int(line["n_rows"]), dict(line["csi"]), int(line["n_scored"]), line["psi"])
