"""The files of a prediction. Each appears only when it is complete, with its rows in the order of the guest's table."""

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv, parquet

from trilateral.common.base.arrays import FloatArray, of_each_row
from trilateral.common.base.errors import ConfigError, DataError
from trilateral.common.base.files import whole_file
from trilateral.common.base.permissions import explain
from trilateral.common.data.model.calibration import calibrate
from trilateral.common.data.model.classes import class_probabilities
from trilateral.common.data.model.model_file import PartyModel
from trilateral.common.data.model.score_columns import CLASS, FIGURES, figures_of_classes
from trilateral.common.data.tables.id_form import SEPARATOR

TWO_VALUES: Mapping[str, pa.DataType] = dict.fromkeys(FIGURES, pa.float64())
"""The columns beside the ID of a label with two values."""
ROW_BYTES = 64
"""Bound of a row without its ID, for each model: two numbers of up to 24 characters, separators and quotes. The name of
a class takes the place of less than one of the numbers."""


@dataclass(frozen=True)
class Figures:
    """The columns of a file of scores beside the ID."""

    schema: Mapping[str, pa.DataType]
    """The columns, in order."""
    of: Callable[[FloatArray], list[pa.Array]]
    """Computes them from scores, shape (n_rows,), or (n_rows, n_classes) in a model of classes."""


def figures_of(model: PartyModel) -> Figures:
    """Return what a file says of each row: its score and probability, or its class and those of each class.

    Args:
        model: the guest's part.

    Raises:
        DataError: the part is not the guest's.
    """
    calibration, classes = model.calibration, model.classes
    if calibration is None:
        raise DataError("the guest's part of the model has no calibration")
    if classes is None or classes.names is None or classes.calibration is None:

        def of_rows(scores: FloatArray) -> list[pa.Array]:
            return [pa.array(scores), pa.array(calibrate(scores, calibration))]

        return Figures(TWO_VALUES, of_rows)
    names, mapped = classes.names, classes.calibration

    def of_classes(scores: FloatArray) -> list[pa.Array]:
        probabilities = class_probabilities(scores, mapped)
        likeliest = pa.array(names).take(pa.array(probabilities.argmax(axis=1)))
        return [likeliest, *map(pa.array, scores.T), *map(pa.array, probabilities.T)]

    return Figures({CLASS: pa.string(), **dict.fromkeys(figures_of_classes(names), pa.float64())}, of_classes)


class ScoreFiles:
    """The open files of one prediction: a part of each is on disk, under another name.

    Args:
        out: file for the ID, the score and the probability of each row that has a score.
        missing: file for the IDs of the rows without a score; None if every row has one.
        n_id_columns: number of columns of an ID.
    """

    def __init__(self, out: "_Part", missing: "_Part | None", n_id_columns: int) -> None:
        self._out = out
        self._missing = missing
        self._n_id_columns = n_id_columns

    def check_room(self, n_bytes: int) -> None:
        """Check that there is room for the files before any score is asked for.

        Args:
            n_bytes: bound of the size of both files together.

        Raises:
            ConfigError: a disk has less free space. Another program may still fill it afterwards.
        """
        for part in filter(None, (self._out, self._missing)):
            free = shutil.disk_usage(part.path.parent).free
            if free < n_bytes:
                raise ConfigError(
                    f"{part.path}: the scores need up to {_megabytes(n_bytes)}, and {_megabytes(free)} are free: make "
                    "room, or choose another folder"
                )

    def write(self, ids: pa.Array, scores: FloatArray, figures: Callable[[FloatArray], list[pa.Array]]) -> None:
        """Write some rows.

        Args:
            ids: the IDs.
            scores: their scores, shape (n_rows,) or (n_rows, n_classes); NaN for a row without a score.
            figures: see `Figures.of`.

        Raises:
            ConfigError: a file cannot be written.
        """
        found = of_each_row(~np.isnan(scores))
        self._out.write([*self._parts(ids.filter(pa.array(found))), *figures(scores[found])])
        if self._missing is not None:
            self._missing.write(self._parts(ids.filter(pa.array(~found))))

    def _parts(self, ids: pa.Array) -> list[pa.Array]:
        """Split IDs into their columns."""
        if self._n_id_columns == 1:
            return [ids]
        parts = pc.split_pattern(ids, SEPARATOR)
        return [pc.list_element(parts, column) for column in range(self._n_id_columns)]


@contextmanager
def score_files(
    out: Path,
    missing: Path | None,
    about: Mapping[str, str],
    id_columns: Sequence[str] = (),
    figures: Mapping[str, pa.DataType] = TWO_VALUES,
) -> Iterator[ScoreFiles]:
    """Open both files with mode 0600, and yield them. They get their names at the end unless there was an error.

    Args:
        out: file for the scores, ``.csv`` or ``.parquet``.
        missing: file for the IDs of the rows without a score; None if every row has one.
        about: facts about the scores. A Parquet file has them in the metadata of its schema.
        id_columns: names of the columns of an ID of several columns, whose parts are joined by `SEPARATOR`. Otherwise
            the only column is `id`.
        figures: the columns beside the ID; see `Figures.schema`.

    Raises:
        ConfigError: a file cannot be written. An older file stays as it was.
    """
    names = id_columns if len(id_columns) > 1 else ["id"]
    ids = dict.fromkeys(names, pa.string())
    with ExitStack() as stack:
        scores = stack.enter_context(_part(out, pa.schema({**ids, **figures}, metadata=dict(about))))
        unscored = None if missing is None else stack.enter_context(_part(missing, pa.schema(ids)))
        yield ScoreFiles(scores, unscored, len(names))


class _Part:
    """One file that is being written."""

    def __init__(self, path: Path, schema: pa.Schema, write_batch: Callable[[pa.RecordBatch], None]) -> None:
        self.path = path
        self._schema = schema
        self._write_batch = write_batch

    def write(self, columns: list[pa.Array]) -> None:
        with _naming(self.path):
            self._write_batch(pa.record_batch(columns, self._schema))


@contextmanager
def _part(path: Path, schema: pa.Schema) -> Iterator[_Part]:
    """Open a file under another name; it gets its own name at the end unless there was an error."""
    if path.suffix not in (".csv", ".parquet"):
        raise ConfigError(f"{path}: unknown file type: the name must end in .csv or .parquet")
    make = csv.CSVWriter if path.suffix == ".csv" else parquet.ParquetWriter
    with _naming(path):
        if path.is_dir():
            raise ConfigError(f"{path}: is a folder: choose another name")
        with whole_file(path) as file, make(file, schema) as writer:
            yield _Part(path, schema, writer.write_batch)


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if isinstance(error, FileNotFoundError) and not path.parent.exists():
            raise ConfigError(f"{path}: the folder {path.parent} does not exist") from None
        raise ConfigError(f"{path}: cannot be written: {explain(error, path)}") from error


def _megabytes(n_bytes: int) -> str:
    return f"{n_bytes / 2**20:,.1f} MiB"
