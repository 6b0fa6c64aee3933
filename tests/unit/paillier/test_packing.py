from collections import Counter

import numpy as np
import pytest
from gmpy2 import mpz
from hypothesis import given
from hypothesis import strategies as st

from trilateral.common.paillier.keys import PublicKey
from trilateral.common.paillier.packing import SlotLayout

layouts = st.builds(SlotLayout, slot_bits=st.integers(8, 70), slots=st.integers(1, 16), mask_bits=st.integers(40, 64))


@st.composite
def products(draw: st.DrawFn) -> tuple[SlotLayout, list[int]]:
    """A layout and the 2k - 1 coefficients of a product, each within +-Z/4."""
    layout = draw(layouts)
    quarter = 1 << layout.slot_bits - 2
    coefficient = st.integers(-quarter, quarter) | st.sampled_from([-quarter, quarter])
    size = 2 * layout.slots - 1
    return layout, draw(st.lists(coefficient, min_size=size, max_size=size))


def evaluate(coefficients: list[int], slot_bits: int) -> mpz:
    return mpz(sum(value << slot_bits * i for i, value in enumerate(coefficients)))


@given(layouts, st.lists(st.integers(-100, 100), max_size=50))
def test_pack_puts_consecutive_samples_at_ascending_powers(layout: SlotLayout, samples: list[int]) -> None:
    packed = layout.pack(np.array(samples, dtype=np.int64))
    assert len(packed) == layout.n_groups(len(samples)) == -(-len(samples) // layout.slots)
    for group, plaintext in enumerate(packed):
        here = samples[group * layout.slots : (group + 1) * layout.slots]
        assert plaintext == evaluate(here, layout.slot_bits)


def test_pack_of_a_known_case() -> None:
    assert SlotLayout(8, 3).pack(np.array([1, -2, 3, 4])) == [1 - 2 * 256 + 3 * 65536, 4]


@given(products(), st.data())
def test_the_middle_slot_is_read_within_one_unit_under_any_mask(
    product: tuple[SlotLayout, list[int]], data: st.DataObject
) -> None:
    layout, coefficients = product
    side = layout.slot_bits * (layout.slots - 1)
    below = data.draw(st.integers(0, (1 << side) - 1) | st.sampled_from([0, (1 << side) - 1]))
    above = data.draw(st.integers(0, (1 << side + layout.mask_bits) - 1))
    plaintext = evaluate(coefficients, layout.slot_bits)
    exact = coefficients[layout.slots - 1]
    tolerance = 0 if layout.slots == 1 else 1
    for mask in (0, below + (above << side + layout.slot_bits), layout.mask()):
        assert abs(layout.read(plaintext + mask) - exact) <= tolerance


@given(layouts, st.integers(-60, 60))
def test_place_is_read_back(layout: SlotLayout, value: int) -> None:
    assert layout.read(layout.place(value)) == value


@given(products())
def test_a_masked_product_fits_the_shortest_key_that_the_check_lets_pass(product: tuple[SlotLayout, list[int]]) -> None:
    layout, coefficients = product
    smallest = PublicKey((mpz(1) << layout.plaintext_bits + 2) + 1)
    layout.check_fits(smallest)
    side = layout.slot_bits * (layout.slots - 1)
    largest_mask = ((mpz(1) << side + layout.mask_bits) - 1 << side + layout.slot_bits) + (mpz(1) << side) - 1
    for mask in (0, largest_mask):
        assert abs(2 * (evaluate(coefficients, layout.slot_bits) + mask)) < smallest.n
    with pytest.raises(ValueError, match="use fewer slots or a longer key"):
        layout.check_fits(PublicKey(mpz(1) << layout.plaintext_bits + 1))


@given(layouts)
def test_masks_leave_the_middle_slot_alone(layout: SlotLayout) -> None:
    mask = layout.mask()
    assert layout.read(mask) == 0
    assert 0 <= mask < mpz(1) << layout.plaintext_bits


def chi_square_of_16(values: list[int]) -> float:
    counts = Counter(values)
    expected = len(values) / 16
    return sum((counts[value] - expected) ** 2 / expected for value in range(16))


def test_masks_are_uniform_below_and_above_the_middle_slot() -> None:
    layout = SlotLayout(20, 4)
    masks = [int(layout.mask()) for _ in range(3200)]
    # 15 degrees of freedom: a right mask exceeds 90 once in 10^12 runs.
    assert chi_square_of_16([(mask & ((1 << 60) - 1)) >> 56 for mask in masks]) < 90
    assert chi_square_of_16([mask & 15 for mask in masks]) < 90
    assert chi_square_of_16([mask >> layout.plaintext_bits - 4 for mask in masks]) < 90
    assert chi_square_of_16([mask >> 80 & 15 for mask in masks]) < 90


@pytest.mark.parametrize(("slot_bits", "slots"), [(2, 4), (0, 1), (64, 0), (64, -1)])
def test_layouts_that_hold_nothing_are_refused(slot_bits: int, slots: int) -> None:
    with pytest.raises(ValueError, match="at least"):
        SlotLayout(slot_bits, slots)


def test_a_mask_that_hides_too_little_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 40 bits of mask"):
        SlotLayout(64, 4, mask_bits=39)
