"""A slot holds whatever a batch can bring, and says so when a party's own values cannot."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.config.job import JobConfig
from common.errors import ConfigError, OutOfRangeError
from common.paillier.packing import MASK_BITS
from common.protocol.scales import (
    COLUMN_FRACTION_BITS,
    LEAST_VALUE_FRACTION_BITS,
    MOST_VALUE_FRACTION_BITS,
    VALUE_BITS,
    encode_columns,
    round_scale,
)


def make_job(**settings: Any) -> JobConfig:
    return JobConfig(name="scales", dataset="none", **settings)


@pytest.mark.parametrize(
    ("key_bits", "n_samples", "n_train", "slots"),
    [(2048, 1000, 1000, 16), (2048, 1000, 24_000, 15), (2048, 24_000, 24_000, 15), (2048, 120_000, 120_000, 14)],
)
def test_a_2048_bit_ciphertext_carries_fourteen_to_sixteen_samples(
    key_bits: int, n_samples: int, n_train: int, slots: int
) -> None:
    assert round_scale(make_job(key_bits=key_bits), n_samples, n_train).layout.slots == slots


sizes = st.tuples(st.integers(1, 10**6), st.integers(1, 10**6)).map(sorted)


@given(sizes=sizes, key_bits=st.sampled_from([1024, 2048, 3072, 4096]))
def test_a_masked_product_stays_below_half_the_modulus(sizes: list[int], key_bits: int) -> None:
    scale = round_scale(make_job(key_bits=key_bits), *sizes)
    layout = scale.layout
    assert layout.slot_bits * (2 * layout.slots - 1) + MASK_BITS <= key_bits - 3
    assert LEAST_VALUE_FRACTION_BITS <= scale.value_fraction_bits <= MOST_VALUE_FRACTION_BITS


@given(sizes=sizes)
def test_a_slot_holds_the_largest_product_and_the_largest_penalty(sizes: list[int]) -> None:
    """|d'| at its limit for every sample, and a column whose whole mass sum x^2 = n lies in the batch."""
    n_samples, n_train = sizes
    scale = round_scale(make_job(), n_samples, n_train)
    x = math.sqrt(n_train / n_samples)
    mass = n_samples * round(x * 2**COLUMN_FRACTION_BITS)
    assert mass <= scale.column_mass_limit(n_train)
    largest = 2 ** (VALUE_BITS + 1 + scale.value_fraction_bits)
    assert scale.column_mass_limit(n_train) * largest <= 2 ** (scale.layout.slot_bits - 2)
    assert scale.column_mass_limit(n_train) * largest + scale.term_limit < 2 ** (scale.layout.slot_bits - 1)


def test_terms_beyond_the_limit_are_out_of_range() -> None:
    scale = round_scale(make_job(), 100, 100)
    scale.check_terms([scale.term_limit, -scale.term_limit])
    with pytest.raises(OutOfRangeError):
        scale.check_terms([0, scale.term_limit + 1])


def test_more_slots_than_fit_are_refused_with_the_number_that_fits() -> None:
    with pytest.raises(ConfigError, match=r"room for 16 slots.*`slots`"):
        round_scale(make_job(slots=17), 1000, 1000)


def test_fewer_slots_keep_the_slot_no_wider_than_useful() -> None:
    one, many = (round_scale(make_job(slots=slots), 1000, 1000) for slots in (1, None))
    assert one.layout.slots == 1
    assert one.value_fraction_bits == MOST_VALUE_FRACTION_BITS
    assert one.layout.slot_bits < 80
    assert many.layout.slots == 16


def test_columns_are_rounded_to_the_grid() -> None:
    fixed = encode_columns(np.array([[0.5, -1.25], [2.0**-21, 3.0]]))
    np.testing.assert_array_equal(fixed, [[1 << 19, -5 << 18], [0, 3 << 20]])
