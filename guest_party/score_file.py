"""The files of a prediction. Each appears only when it is complete, with its rows in the order of the guest's table."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv, parquet

from trilateral.common.base.arrays import FloatVector
from trilateral.common.base.errors import ConfigError
from trilateral.common.base.files import whole_file
from trilateral.common.base.permissions import explain
from trilateral.common.data.tables.id_form import SEPARATOR

FIGURES = {"score": pa.float64(), "probability": pa.float64()}


def check_suffix(path: Path) -> None:
    """Check that a file can be written in a known format.

    Raises:
        ConfigError: the suffix is unknown, or the folder does not exist.
    """
    if path.suffix not in (".csv", ".parquet"):
        raise ConfigError(f"{path}: unknown file type: the name must end in .csv or .parquet")
    if not path.parent.is_dir():
        raise ConfigError(f"{path}: the folder {path.parent} does not exist")


def write_scores(
    out: Path,
    missing: Path | None,
    rows: Iterable[tuple[pa.Array, FloatVector]],
    probabilities: Callable[[FloatVector], FloatVector],
    id_columns: Sequence[str] = (),
) -> None:
    """Write both files with mode 0600.

    Args:
        out: file for the ID, the score and the probability of each row that has a score.
        missing: file for the IDs of the rows without a score; None if every row has one.
        rows: pieces of IDs with their scores, NaN for a row without a score.
        probabilities: computes probabilities from scores, with the same shape.
        id_columns: names of the columns of an ID of several columns, whose parts are joined by `SEPARATOR`. Otherwise
            the only column is `id`.

    Raises:
        ConfigError: a file cannot be written. An older file stays as it was.
    """
    with ExitStack() as files:
        names = id_columns if len(id_columns) > 1 else ["id"]
        id_fields = dict.fromkeys(names, pa.string())
        scores_schema, missing_schema = pa.schema(id_fields | FIGURES), pa.schema(id_fields)
        scored = files.enter_context(_whole_table(out, scores_schema))
        unscored = None if missing is None else files.enter_context(_whole_table(missing, missing_schema))
        for ids, scores in rows:
            found = scores == scores  # noqa: PLR0124 (NaN is unequal to itself)
            kept = scores[found]
            columns = [*_parts(ids.filter(pa.array(found)), len(names)), pa.array(kept), pa.array(probabilities(kept))]
            scored(pa.record_batch(columns, scores_schema))
            if unscored is not None:
                unscored(pa.record_batch(_parts(ids.filter(pa.array(~found)), len(names)), missing_schema))


def _parts(ids: pa.Array, n_columns: int) -> list[pa.Array]:
    """Split IDs into their columns."""
    if n_columns == 1:
        return [ids]
    parts = pc.split_pattern(ids, SEPARATOR)
    return [pc.list_element(parts, column) for column in range(n_columns)]


@contextmanager
def _whole_table(path: Path, schema: pa.Schema) -> Iterator[Callable[[pa.RecordBatch], None]]:
    """Yield a function that writes batches. The file appears at the end unless there was an error."""
    try:
        make = csv.CSVWriter if path.suffix == ".csv" else parquet.ParquetWriter
        with whole_file(path) as file, make(file, schema) as writer:
            yield writer.write_batch
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {explain(error, path)}") from error
