"""Conversions between Arrow and numpy that do without pandas."""

import subprocess
import sys

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from trilateral.common.data.tables.arrow_arrays import (
    from_numpy,
    from_texts,
    null,
    to_booleans,
    to_codes,
    to_floats,
    to_numpy,
)

TEXTS = st.lists(st.none() | st.text(max_size=5))
FLOATS = st.lists(st.none() | st.floats(width=64))


@given(TEXTS)
def test_texts_are_those_of_arrows_own_conversion(texts: list[str | None]) -> None:
    array = from_texts(texts)
    array.validate(full=True)
    assert array.equals(pa.array(texts, pa.string()))


@given(st.lists(TEXTS, min_size=1))
def test_codes_name_the_text_of_each_row(chunks: list[list[str | None]]) -> None:
    codes, levels = to_codes(pa.chunked_array([pa.array(chunk, pa.string()) for chunk in chunks]))
    assert len(set(levels)) == len(levels)
    assert [None if code < 0 else levels[code] for code in codes] == [text for chunk in chunks for text in chunk]


@given(st.lists(FLOATS, min_size=1), st.integers(0, 5))
def test_numbers_keep_their_bits_and_missing_ones_are_nan(chunks: list[list[float | None]], start: int) -> None:
    column = pa.chunked_array([pa.array(chunk, pa.float64()) for chunk in chunks]).slice(start)
    expected = [np.nan if each is None else each for chunk in chunks for each in chunk][start:]
    np.testing.assert_array_equal(to_floats(column), np.array(expected, dtype=np.float64))


@given(st.lists(st.booleans()), st.integers(0, 20))
def test_truth_values_and_integers_survive(values: list[bool], start: int) -> None:
    column = pa.chunked_array([pa.array(values, pa.bool_())]).slice(start)
    assert to_booleans(column).tolist() == values[start:]
    numbers = np.arange(len(values))
    assert to_numpy(pa.chunked_array([from_numpy(numbers)])).tolist() == numbers.tolist()


def test_a_null_has_its_type() -> None:
    assert null(pa.float32()).type == pa.float32()
    assert not null(pa.string()).is_valid


def test_no_conversion_imports_pandas() -> None:
    program = """
import sys
import numpy as np
import pyarrow as pa
from trilateral.common.data.tables import arrow_arrays as a
texts = pa.chunked_array([a.from_texts(["a", None, "a"])])
a.to_codes(texts), a.null(pa.float64()), a.to_booleans(texts.is_null())
a.to_floats(pa.chunked_array([a.from_numpy(np.ones(2))]))
print("pandas" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
