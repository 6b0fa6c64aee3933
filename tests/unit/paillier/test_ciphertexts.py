"""A vector of ciphertexts as bytes: numbers in and out, slices, and what leaves a party."""

import pytest
from gmpy2 import mpz
from hypothesis import given
from hypothesis import strategies as st

from trilateral.common.paillier.cipher import EncryptedVector
from trilateral.common.paillier.ciphertexts import Ciphertexts, joined

WIDTH = 6
numbers = st.lists(st.integers(0, 256**WIDTH - 1).map(mpz), max_size=9)


@given(numbers)
def test_numbers_come_out_as_they_went_in(values: list[mpz]) -> None:
    ciphertexts = Ciphertexts.of(values, WIDTH)
    assert list(ciphertexts) == [ciphertexts[i] for i in range(len(values))] == values
    assert len(ciphertexts) == len(values)
    assert bytes(ciphertexts.data) == b"".join(int(value).to_bytes(WIDTH, "big") for value in values)


@given(numbers, st.none() | st.integers(-12, 12), st.none() | st.integers(-12, 12))
def test_a_slice_is_that_of_a_list(values: list[mpz], start: int | None, stop: int | None) -> None:
    ciphertexts = Ciphertexts.of(values, WIDTH)
    part = ciphertexts[start:stop]
    assert list(part) == values[start:stop]
    assert part == Ciphertexts.of(values[start:stop], WIDTH)
    assert list(part[1:]) == values[start:stop][1:]


def test_a_slice_copies_nothing() -> None:
    ciphertexts = Ciphertexts.of(range(9), WIDTH)
    part = ciphertexts[3:5][1:]
    assert isinstance(part.data, memoryview)
    assert part.data.obj is ciphertexts.data


@given(st.lists(numbers, min_size=1, max_size=4))
def test_vectors_join_in_order(parts: list[list[mpz]]) -> None:
    whole = Ciphertexts.of([value for part in parts for value in part], WIDTH)
    assert joined([Ciphertexts.of(part, WIDTH) for part in parts]) == whole


def test_vectors_of_different_widths_are_not_joined() -> None:
    with pytest.raises(ValueError, match="unpack"):
        joined([Ciphertexts.of([1], WIDTH), Ciphertexts.of([1], WIDTH + 1)])


def test_bytes_that_are_no_whole_number_of_ciphertexts_are_refused() -> None:
    for data, width in ((bytes(7), 6), (bytes(5), 6), (b"", 0), (bytes(6), -6)):
        with pytest.raises(ValueError, match="not a whole number"):
            Ciphertexts(data, width)


def test_numbers_without_room_and_places_beyond_the_end_are_refused() -> None:
    for number in (-1, 256**WIDTH):
        with pytest.raises(OverflowError):
            Ciphertexts.of([number], WIDTH)
    ciphertexts = Ciphertexts.of([1, 2], WIDTH)
    assert ciphertexts[-1] == 2
    for place in (2, -3):
        with pytest.raises(IndexError):
            ciphertexts[place]
    with pytest.raises(ValueError, match="step"):
        ciphertexts[::2]


def test_vectors_of_another_width_differ_and_say_no_number() -> None:
    ciphertexts = Ciphertexts.of([7], WIDTH)
    assert ciphertexts != Ciphertexts.of([7], WIDTH + 1)
    assert repr(ciphertexts) == "Ciphertexts(1 of 6 bytes)"


def test_what_a_cipher_computes_with_has_no_bytes_to_send() -> None:
    vector = EncryptedVector([mpz(1), mpz(2)])
    assert (len(vector), vector[1:].elements) == (2, [mpz(2)])
    assert not hasattr(vector, "data")
    with pytest.raises(TypeError):
        bytes(vector)  # type: ignore[call-overload]
