"""A slot holds the result of any batch, and an error names a party's own values that do not fit."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trilateral.common.base.errors import ConfigError, OutOfRangeError
from trilateral.common.config.job import JobConfig
from trilateral.common.paillier.packing import MAX_MASK_BITS, MIN_MASK_BITS
from trilateral.common.protocol.scales import (
    MAX_VALUE_FRACTION_BITS,
    MIN_VALUE_FRACTION_BITS,
    VALUE_BITS,
    round_scale,
)


def make_job(**settings: Any) -> JobConfig:
    return JobConfig(name="scales", dataset="none", **settings)


@pytest.mark.parametrize(
    ("key_bits", "n_samples", "n_train", "expected"),
    [
        (2048, 1000, 1000, (15, 68, 23, 23, 64)),
        (2048, 1000, 24_000, (15, 69, 21, 23, 44)),
        (2048, 24_000, 24_000, (15, 68, 21, 20, 64)),
        (2048, 120_000, 120_000, (15, 68, 20, 19, 64)),
        (2048, 1000, 120_000, (14, 73, 24, 23, 64)),
        (3072, 10_000, 10_000, (23, 67, 20, 21, 54)),
        (1024, 100, 100, (8, 65, 22, 24, 46)),
    ],
)
def test_the_scales_are_those_of_the_documentation(
    key_bits: int, n_samples: int, n_train: int, expected: tuple[int, int, int, int, int]
) -> None:
    """docs/protocol.md: k, slot bits, fraction bits of u and d', fraction bits of x, bits of the mask."""
    scale = round_scale(make_job(key_bits=key_bits), n_samples, n_train)
    layout = scale.layout
    found = layout.slots, layout.slot_bits, scale.value_fraction_bits, scale.column_fraction_bits, layout.mask_bits
    assert found == expected


sizes = st.tuples(st.integers(1, 10**6), st.integers(1, 10**6)).map(sorted)


@given(sizes=sizes, key_bits=st.sampled_from([1024, 2048, 3072, 4096]))
def test_a_masked_product_stays_below_half_the_modulus(sizes: list[int], key_bits: int) -> None:
    scale = round_scale(make_job(key_bits=key_bits), *sizes)
    layout = scale.layout
    assert layout.plaintext_bits <= key_bits - 3
    assert MIN_MASK_BITS <= layout.mask_bits <= MAX_MASK_BITS
    assert MIN_VALUE_FRACTION_BITS <= scale.value_fraction_bits <= MAX_VALUE_FRACTION_BITS


@given(sizes=sizes, key_bits=st.sampled_from([256, 512, 1024, 2048, 3072, 4096, 8192]))
def test_a_longer_mask_costs_no_slot(sizes: list[int], key_bits: int) -> None:
    layout = round_scale(make_job(key_bits=key_bits), *sizes).layout
    with pytest.raises(ConfigError, match=f"room for {layout.slots} slots"):
        round_scale(make_job(key_bits=key_bits, slots=layout.slots + 1), *sizes)


@given(sizes=sizes)
def test_a_slot_holds_the_largest_product_and_the_largest_penalty(sizes: list[int]) -> None:
    """|d'| at its limit for every sample, and a column whose whole mass sum x^2 = n lies in the batch."""
    n_samples, n_train = sizes
    scale = round_scale(make_job(), n_samples, n_train)
    x = math.sqrt(n_train / n_samples)
    mass = n_samples * round(x * 2**scale.column_fraction_bits)
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
    with pytest.raises(ConfigError, match=r"room for 15 slots.*`slots`"):
        round_scale(make_job(slots=17), 1000, 1000)


def test_fewer_slots_keep_the_slot_no_wider_than_useful() -> None:
    one, many = (round_scale(make_job(slots=slots), 1000, 1000) for slots in (1, None))
    assert one.layout.slots == 1
    assert one.value_fraction_bits == MAX_VALUE_FRACTION_BITS
    assert one.layout.slot_bits < 80
    assert many.layout.slots == 15


def test_columns_are_rounded_to_the_grid() -> None:
    scale = round_scale(make_job(), 1024, 1024)
    assert scale.column_fraction_bits == 23
    fixed = scale.encode_columns(np.array([[0.5, -1.25], [2.0**-24, 3.0]]))
    np.testing.assert_array_equal(fixed, [[1 << 22, -5 << 21], [0, 3 << 23]])


@given(n_samples=st.integers(1, 10**6))
def test_the_error_of_a_mean_product_does_not_depend_on_the_batch(n_samples: int) -> None:
    """Rounding to 2^-f is off by 2^-f / sqrt(12); the mean over m independent such errors by 1/sqrt(m) of that."""
    scale = round_scale(make_job(), n_samples, n_samples)
    error = 2.0**-scale.column_fraction_bits / math.sqrt(12 * n_samples)
    assert 2.0**-28 / 4 <= error * 2 <= 2.0**-28 * 2
