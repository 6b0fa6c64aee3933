from fractions import Fraction

import numpy as np
import pytest
from gmpy2 import mpz
from hypothesis import given
from hypothesis import strategies as st

from trilateral.common.base.errors import OutOfRangeError
from trilateral.common.paillier.fixed_point import decode, encode, encode_wide


@given(st.lists(st.floats(-256, 256), max_size=20), st.integers(0, 40))
def test_encode_rounds_the_exact_value_half_to_even(values: list[float], fraction_bits: int) -> None:
    encoded = encode(values, fraction_bits, 8)
    assert encoded.dtype == np.int64
    assert encoded.tolist() == [round(Fraction(value) * 2**fraction_bits) for value in values]


def test_halves_go_to_the_even_neighbour() -> None:
    assert encode([0.5, 1.5, 2.5, -0.5, -1.5, -2.5], 0, 8).tolist() == [0, 2, 2, 0, -2, -2]
    assert encode([0.25, 0.75], 1, 8).tolist() == [0, 2]


@given(st.lists(st.floats(-256, 256), min_size=1, max_size=20), st.integers(0, 40))
def test_decode_comes_back_within_half_a_unit(values: list[float], fraction_bits: int) -> None:
    back = decode(encode(values, fraction_bits, 8), fraction_bits)
    assert np.all(np.abs(back - values) <= 2.0 ** -(fraction_bits + 1))


@given(st.lists(st.integers(-(2**52), 2**52), max_size=20), st.integers(0, 50))
def test_encode_inverts_decode(integers: list[int], fraction_bits: int) -> None:
    assert encode(decode(integers, fraction_bits), fraction_bits, 62 - fraction_bits).tolist() == [
        integer for integer in integers if abs(integer) <= 2**62
    ]


@given(st.integers(-(2**200), 2**200), st.integers(0, 100))
def test_decode_takes_integers_of_any_size(integer: int, fraction_bits: int) -> None:
    for value in (integer, mpz(integer)):
        decoded = decode([value], fraction_bits)
        assert decoded.dtype == np.float64
        assert decoded.tolist() == [float(Fraction(integer, 2**fraction_bits))]


def test_shapes_are_kept() -> None:
    assert encode(np.ones((3, 2)), 4, 2).tolist() == [[16, 16]] * 3
    assert decode(np.array([], dtype=np.int64), 4).shape == (0,)


@pytest.mark.parametrize("limit_bits", [0, 6, 8, 38])
def test_the_limit_itself_passes_and_the_next_float_does_not(limit_bits: int) -> None:
    limit = 2.0**limit_bits
    assert encode([limit, -limit], 24, limit_bits).tolist() == [2 ** (limit_bits + 24), -(2 ** (limit_bits + 24))]
    for beyond in (np.nextafter(limit, np.inf), -np.nextafter(limit, np.inf), 1e300):
        with pytest.raises(OutOfRangeError, match=f"2\\^{limit_bits}"):
            encode([0.0, beyond], 24, limit_bits)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_nan_is_out_of_range(value: float) -> None:
    with pytest.raises(OutOfRangeError):
        encode([0.0, value], 24, 8)


def test_the_message_shows_no_value() -> None:
    with pytest.raises(OutOfRangeError) as error:
        encode([12345.678], 24, 8)
    assert "12345" not in str(error.value)
    assert "learning rate" in str(error.value)


def test_a_range_that_an_int64_cannot_hold_is_refused() -> None:
    assert encode([1.0], 62, 0).tolist() == [2**62]
    with pytest.raises(ValueError, match="do not fit"):
        encode([1.0], 40, 23)


@given(st.lists(st.floats(-(2.0**80), 2.0**80), max_size=5), st.integers(0, 60))
def test_wide_encoding_rounds_like_fractions_whatever_the_size(values: list[float], fraction_bits: int) -> None:
    encoded = encode_wide(values, fraction_bits)
    assert all(
        2 * abs(integer - Fraction(v) * 2**fraction_bits) <= 1 for integer, v in zip(encoded, values, strict=True)
    )


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_wide_encoding_refuses_values_that_are_not_finite(value: float) -> None:
    with pytest.raises(OutOfRangeError, match="finite"):
        encode_wide([0.0, value], 10)
