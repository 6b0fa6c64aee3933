"""The guest's result: a table of scores, whole or not at all, in the order of the guest's own rows."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyarrow as pa
from pyarrow import csv, parquet

from trilateral.common.base.arrays import FloatVector
from trilateral.common.base.errors import ConfigError
from trilateral.common.base.files import whole_file

SCORES = pa.schema([("id", pa.string()), ("score", pa.float64()), ("probability", pa.float64())])
MISSING = pa.schema([("id", pa.string())])


def check_suffix(path: Path) -> None:
    """Accept the name of a file whose kind is known.

    Raises:
        ConfigError: it is of none, or its folder is not there.
    """
    if path.suffix not in (".csv", ".parquet"):
        raise ConfigError(f"{path}: is of an unknown kind: the name must end in .csv or .parquet")
    if not path.parent.is_dir():
        raise ConfigError(f"{path}: there is no folder {path.parent}")


def write_scores(
    out: Path,
    missing: Path | None,
    rows: Iterable[tuple[pa.Array, FloatVector]],
    probabilities: Callable[[FloatVector], FloatVector],
) -> None:
    """Write both files, mode 0600: the scores of the rows that have one, and the IDs of those that have none.

    Args:
        out: for ID, score and probability.
        missing: for the IDs without a score; None if there are none.
        rows: pieces of IDs and their scores, NaN where a row has none.
        probabilities: from scores, of the same shape.

    Raises:
        ConfigError: a file cannot be written. What was there before is there still.
    """
    with ExitStack() as files:
        scored = files.enter_context(_whole_table(out, SCORES))
        unscored = None if missing is None else files.enter_context(_whole_table(missing, MISSING))
        for ids, scores in rows:
            found = scores == scores  # noqa: PLR0124 (NaN is unlike itself)
            kept = scores[found]
            scored(
                pa.record_batch([ids.filter(pa.array(found)), pa.array(kept), pa.array(probabilities(kept))], SCORES)
            )
            if unscored is not None:
                unscored(pa.record_batch([ids.filter(pa.array(~found))], MISSING))


@contextmanager
def _whole_table(path: Path, schema: pa.Schema) -> Iterator[Callable[[pa.RecordBatch], None]]:
    """Yield what takes batches; the file appears at the end, if all went well."""
    try:
        make = csv.CSVWriter if path.suffix == ".csv" else parquet.ParquetWriter
        with whole_file(path) as file, make(file, schema) as writer:
            yield writer.write_batch
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror}") from error
