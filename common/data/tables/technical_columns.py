"""Columns that a program has added to a table: row numbers, row names and the indexes of data frames.

Such a column says nothing about a person, but it may give the label away, for example if the rows were sorted by it.
"""

import re
from collections.abc import Sequence

_NAMES = re.compile(
    r"(?i)"
    r"unnamed: ?\d+(?:\.\d+)*(?:_level_\d+)?"  # pandas reads an index that `to_csv` wrote without a name
    r"|__index_level_\d+__|__null_dask_index__"  # pandas and Dask, in Parquet
    r"|\.\.\.\d+"  # readr gives a name to a column without one
    r"|rownames|row[._]names?|rowname"  # R
    r"|rowid|row_?num(?:ber)?|row_nr|file_row_number"  # databases, Polars and DuckDB
    r"|_n_|_error_"  # automatic variables of SAS
)

_FIRST_NAMES = re.compile(r"(_c)0|(column)0+")
"""Names that Spark and DuckDB give to a first column without a name. If there are no column names, all columns have
such names."""


def technical_columns(names: Sequence[str], indexes: Sequence[str]) -> dict[str, str]:
    """Find the columns that a program has added, by their names and the file's own metadata.

    Args:
        names: the names of all columns, in the order of the file.
        indexes: the names of the columns that the file's metadata declares as indexes.

    Returns:
        The reason to leave each such column out, by its name.
    """
    found: dict[str, str] = {}
    for name in names:
        if not name:
            found[name] = "no name, like row names of R or empty columns of a spreadsheet"
        elif name in indexes:
            found[name] = "an index of a data frame according to the metadata of the file"
        elif _NAMES.fullmatch(name):
            found[name] = "named like a row number or row name"
    first = _FIRST_NAMES.fullmatch(names[0]) if names else None
    if first is not None:
        generated = re.compile(rf"{first[1] or first[2]}\d+")
        if not any(generated.fullmatch(name) for name in names[1:]):
            found[names[0]] = "named like a row number or row name"
    return found
