"""Data frames as features, and back."""

import numpy as np
import pandas as pd
from pandas.api.types import is_numeric_dtype

from trilateral.common.data.features import Categories, Column, Features


def features_of(frame: pd.DataFrame) -> Features:
    """Return the columns of a data frame as a table's features."""
    return Features({str(name): column_of(frame[name]) for name in frame.columns}, len(frame))


def column_of(series: "pd.Series[float] | pd.Series[str]") -> Column:
    """Return a column of numbers or text."""
    if is_numeric_dtype(series.dtype):
        return np.asarray(series.to_numpy(np.float64, na_value=np.nan), np.float64)
    codes, levels = pd.factorize(series)
    return Categories.of(codes.astype(np.int32), [str(level) for level in levels])


def frame_of(features: Features) -> pd.DataFrame:
    """Return a table's features as a data frame."""
    columns = {
        name: pd.Series(column.to_list(), dtype="str") if isinstance(column, Categories) else column
        for name, column in features.columns.items()
    }
    return pd.DataFrame(columns, index=pd.RangeIndex(len(features)))
