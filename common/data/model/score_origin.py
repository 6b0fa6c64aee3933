"""Which model has made a file of scores. A Parquet file says so in the metadata of its schema; a CSV file cannot."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from trilateral.common.base.errors import DataError
from trilateral.common.data.model.model_file import PartyModel

JOB, RUN = "trilateral.job", "trilateral.run_id"
"""Keys of the metadata."""


def check_origin(path: Path, model: PartyModel) -> None:
    """Check that a file of scores is not that of another model. A file that does not say of which one passes.

    Args:
        path: the file. Whether it can be read is for `read_scores` to say.
        model: the model whose scores it should have.

    Raises:
        DataError: another model has made the scores.
    """
    if path.suffix != ".parquet":
        return
    try:
        said = pq.read_schema(path).metadata or {}
    except (OSError, pa.ArrowException):
        return
    job, run = (said.get(key.encode(), b"").decode(errors="replace") for key in (JOB, RUN))
    if run and run != model.run_id:
        raise DataError(
            f"{path.name} has the scores of job {job}, run {run}, and not of job {model.job.name}, run {model.run_id}:"
            " name the scores of this model"
        )
