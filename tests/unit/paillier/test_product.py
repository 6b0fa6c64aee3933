from dataclasses import dataclass

import numpy as np
import pytest
from gmpy2 import mpz
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.support.ciphertexts import numbers_in
from trilateral.common.paillier.cipher import EncryptedVector
from trilateral.common.paillier.exponents import ColumnBounds
from trilateral.common.paillier.keys import generate_private_key
from trilateral.common.paillier.packed import PackedCipher
from trilateral.common.paillier.packing import MIN_MASK_BITS, SlotLayout
from trilateral.common.paillier.product import PackedProduct, odd_powers, signed_digits, window_width

KEY = generate_private_key(512)
PUBLIC = KEY.public_key
CIPHER = PackedCipher(PUBLIC)
SAMPLE_BITS = 10


@dataclass
class Case:
    """An encrypted vector, a table, and a layout that is wide enough for their product."""

    layout: SlotLayout
    samples: NDArray[np.int64]
    columns: NDArray[np.int64]

    @property
    def ciphertexts(self) -> EncryptedVector:
        return CIPHER.open(CIPHER.encrypt(self.layout.pack(self.samples)))

    @property
    def exact(self) -> list[int]:
        return [sum(int(d) * int(x) for d, x in zip(self.samples, column, strict=True)) for column in self.columns.T]

    def plaintexts(self) -> list[mpz]:
        """sum_g D_g E_gj from the definition, in integers."""
        k, base = self.layout.slots, 1 << self.layout.slot_bits
        return [
            mpz(
                sum(
                    plaintext * sum(int(x) * base ** (k - 1 - i) for i, x in enumerate(column[g * k : (g + 1) * k]))
                    for g, plaintext in enumerate(self.layout.pack(self.samples))
                )
            )
            for column in self.columns.T
        ]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    n_samples, n_columns = draw(st.integers(1, 13)), draw(st.integers(1, 4))
    column_bits = draw(st.integers(1, 30))
    slot_bits = SAMPLE_BITS + column_bits + (n_samples - 1).bit_length() + 2
    max_sides = (PUBLIC.bits - 3 - MIN_MASK_BITS - slot_bits) // (2 * slot_bits)
    slots = 1 + draw(st.integers(0, max_sides))
    largest = 1 << column_bits
    x = st.integers(-largest, largest) | st.sampled_from([0, 1, -1, largest, -largest, largest - 1])
    d = st.integers(-(1 << SAMPLE_BITS), 1 << SAMPLE_BITS)
    columns = draw(st.lists(x, min_size=n_samples * n_columns, max_size=n_samples * n_columns))
    samples = draw(st.lists(d, min_size=n_samples, max_size=n_samples))
    return Case(
        SlotLayout(slot_bits, slots),
        np.array(samples, dtype=np.int64),
        np.array(columns, dtype=np.int64).reshape(n_samples, n_columns),
    )


def multiply(case: Case) -> EncryptedVector:
    product = PackedProduct(PUBLIC, case.layout, case.columns)
    product.update(case.ciphertexts)
    return product.result()


@settings(deadline=None)
@given(cases())
def test_the_product_encrypts_what_the_definition_says(case: Case) -> None:
    opened = [KEY.decrypt(c) for c in numbers_in(CIPHER, multiply(case))]
    assert opened == case.plaintexts()
    assert all(abs(case.layout.read(m) - e) <= 1 for m, e in zip(opened, case.exact, strict=True))


@settings(deadline=None)
@given(cases())
def test_masked_and_rerandomised_the_middle_slot_still_holds_the_inner_product(case: Case) -> None:
    masked = CIPHER.rerandomise(multiply(case), [case.layout.mask() for _ in range(case.columns.shape[1])])
    read = [case.layout.read(KEY.decrypt(c)) for c in masked]
    assert all(abs(r - e) <= 1 for r, e in zip(read, case.exact, strict=True))


@settings(deadline=None)
@given(cases(), st.data())
def test_pieces_of_any_size_give_the_same_ciphertexts_as_one_update(case: Case, data: st.DataObject) -> None:
    ciphertexts = case.ciphertexts
    whole = PackedProduct(PUBLIC, case.layout, case.columns)
    whole.update(ciphertexts)
    pieces = PackedProduct(PUBLIC, case.layout, case.columns)
    cuts = data.draw(st.lists(st.integers(0, len(ciphertexts)), max_size=5).map(sorted))
    for start, stop in zip([0, *cuts], [*cuts, len(ciphertexts)], strict=True):
        pieces.update(ciphertexts[start:stop])
    results = [numbers_in(CIPHER, each.result()) for each in (pieces, whole, pieces)]
    assert results[0] == results[1] == results[2]


def test_a_piece_longer_than_a_block_of_tables() -> None:
    rng = np.random.default_rng(0)
    samples, columns = rng.integers(-1000, 1000, size=150), rng.integers(-1000, 1000, size=(150, 2))
    case = Case(SlotLayout(30, 1), samples, columns)
    assert [KEY.decrypt(c) for c in numbers_in(CIPHER, multiply(case))] == case.exact


def test_zero_columns_encrypt_zero() -> None:
    samples = np.array([5, -7, 11])
    mixed = Case(SlotLayout(30, 2), samples, np.array([[0, 1], [0, -1], [0, 2]]))
    assert mixed.layout.read(KEY.decrypt(numbers_in(CIPHER, multiply(mixed))[0])) == 0
    zeros = Case(SlotLayout(30, 2), samples, np.zeros((3, 2), dtype=np.int64))
    assert [KEY.decrypt(c) for c in CIPHER.rerandomise(multiply(zeros))] == [0, 0]


def test_more_or_fewer_ciphertexts_than_the_samples_need_are_refused() -> None:
    case = Case(SlotLayout(30, 2), np.array([1, 2, 3]), np.array([[1], [2], [3]]))
    product = PackedProduct(PUBLIC, case.layout, case.columns)
    product.update(case.ciphertexts[:1])
    with pytest.raises(ValueError, match="1 ciphertexts of the vector are missing"):
        product.result()
    with pytest.raises(ValueError, match="more were given"):
        product.update(case.ciphertexts)
    product.update(case.ciphertexts[1:])
    assert case.layout.read(KEY.decrypt(numbers_in(CIPHER, product.result())[0])) == 14


@pytest.mark.parametrize(
    "columns",
    [np.zeros((3, 1)), np.zeros(3, dtype=np.int64), np.zeros((0, 2), dtype=np.int64), np.full((3, 1), -(2**62))],
)
def test_tables_that_cannot_be_multiplied_are_refused(columns: NDArray[np.int64]) -> None:
    with pytest.raises(ValueError, match="columns must be"):
        PackedProduct(PUBLIC, SlotLayout(30, 2), columns)


class Lazy:
    """Columns that are made when a product reads them, and how many rows it has read at most at a time."""

    def __init__(self, columns: NDArray[np.int64]) -> None:
        self._columns = columns
        self.shape = columns.shape
        self.most = 0

    def __len__(self) -> int:
        return len(self._columns)

    def __getitem__(self, rows: slice | NDArray[np.int64], /) -> NDArray[np.int64]:
        block = self._columns[rows].copy()
        self.most = max(self.most, len(block))
        return block


def test_a_product_reads_its_columns_by_blocks_within_their_bounds() -> None:
    rng = np.random.default_rng(0)
    case = Case(SlotLayout(30, 1), rng.integers(-100, 100, 200), rng.integers(-100, 100, (200, 2)))
    columns = Lazy(case.columns)
    wide = ColumnBounds(np.array([-1000, -100]), np.array([100, 5000]))
    product = PackedProduct(PUBLIC, case.layout, columns, wide)
    product.update(case.ciphertexts)
    assert [KEY.decrypt(c) for c in numbers_in(CIPHER, product.result())] == case.exact
    assert columns.most <= 64
    narrow = PackedProduct(PUBLIC, case.layout, columns, ColumnBounds(np.array([-9, -9]), np.array([9, 9])))
    with pytest.raises(ValueError, match="beyond the bounds"):
        narrow.update(case.ciphertexts)


def test_a_layout_too_wide_for_the_key_is_refused() -> None:
    with pytest.raises(ValueError, match="need a key"):
        PackedProduct(PUBLIC, SlotLayout(64, 5), np.array([[1]]))


@given(st.lists(st.integers(-(2**62) + 1, 2**62 - 1), min_size=1, max_size=5), st.integers(2, 12))
def test_signed_digits_are_sparse_odd_and_sum_to_the_number(values: list[int], width: int) -> None:
    digits = [row.tolist() for row in signed_digits(np.array(values), width)]
    for i, value in enumerate(values):
        mine = [row[i] for row in digits]
        assert sum(digit << bit for bit, digit in enumerate(mine)) == value
        assert all(digit % 2 and abs(digit) < 1 << width - 1 for digit in mine if digit)
        assert all(sum(digit != 0 for digit in mine[bit : bit + width]) <= 1 for bit in range(len(mine)))
        assert not any(mine[abs(value).bit_length() + 1 :])


@pytest.mark.parametrize("width", [2, 3, 6])
def test_odd_powers_match_their_exponents(width: int) -> None:
    c = CIPHER.encrypt([mpz(1)])[0]
    top = (1 << width - 1) - 1
    expected = [pow(int(c), exponent, int(PUBLIC.n_squared)) for exponent in range(-top, top + 1, 2)]
    assert odd_powers(c, width, PUBLIC.n_squared) == expected


def test_tables_grow_with_the_number_of_uses() -> None:
    widths = [window_width(n_uses, 20) for n_uses in (1, 15, 200, 5000)]
    assert widths == sorted(widths)
    assert widths[0] == 2
    assert widths[2] == 7
