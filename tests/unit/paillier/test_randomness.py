import secrets

import gmpy2
import numpy as np
import pytest
from gmpy2 import mpz
from hypothesis import given
from hypothesis import strategies as st

from trilateral.common.paillier.keys import PublicKey, generate_private_key
from trilateral.common.paillier.randomness import (
    TABLES,
    TEETH,
    NthResidues,
    RandomnessPool,
    Residues,
    comb_steps,
    draw_indices,
)

KEY = generate_private_key(256)
N = KEY.public_key.n
SOURCE = NthResidues(KEY.public_key)
STEPS = comb_steps(KEY.public_key)


class Counter:
    """Draws 1, 2, 3, ... and so shows what is drawn when."""

    piece = 8

    def __init__(self) -> None:
        self.drawn = 0

    def empty(self, count: int) -> Residues:
        return np.zeros(count, dtype=np.int64)

    def draw(self, out: Residues) -> None:
        out[:] = range(self.drawn + 1, self.drawn + len(out) + 1)
        self.drawn += len(out)


def draw(source: NthResidues, count: int) -> list[mpz]:
    out = source.empty(count)
    source.draw(out)
    drawn: list[mpz] = out.tolist()
    return drawn


def drawn_with(source: NthResidues, random: bytes) -> mpz:
    """Return one residue, given what the operating system's randomness is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(secrets, "token_bytes", lambda size: {len(random): random}[size])
        return draw(source, 1)[0]


def test_draws_differ_and_encrypt_zero() -> None:
    draws = draw(SOURCE, 200)
    assert len(set(draws)) == 200
    assert all(KEY.decrypt(residue) == 0 for residue in draws)


def test_draws_have_jacobi_symbol_one_and_half_are_squares() -> None:
    # A power of a square would always be one: the sign in -x^2 doubles the group.
    draws = draw(SOURCE, 400)
    assert all(gmpy2.jacobi(residue, N) == 1 for residue in draws)
    assert 100 < sum(gmpy2.legendre(residue, KEY.p) == 1 for residue in draws) < 300


def indices_for(exponent: int) -> bytes:
    """Return the bytes that make the sources draw h^exponent, by the definition in NthResidues."""
    indices = [[0] * TABLES for _ in range(STEPS)]
    for bit in range(exponent.bit_length()):
        place, step = divmod(bit, STEPS)
        tooth, table = divmod(place, TABLES)
        indices[STEPS - 1 - step][table] |= (exponent >> bit & 1) << tooth
    return np.array(indices, dtype="<u2").tobytes()


def test_each_source_has_a_base_of_its_own() -> None:
    other = NthResidues(KEY.public_key)
    assert drawn_with(SOURCE, indices_for(1)) != drawn_with(other, indices_for(1))


@given(st.integers(0, (1 << STEPS * TABLES * TEETH) - 1))
def test_a_draw_is_a_power_of_one_base(exponent: int) -> None:
    base = drawn_with(SOURCE, indices_for(1))
    assert drawn_with(SOURCE, indices_for(exponent)) == pow(int(base), exponent, int(N) ** 2)


@pytest.mark.parametrize("bits", [16, 256, 2048, 3072, 4096])
def test_exponents_have_at_least_half_the_bits_of_n(bits: int) -> None:
    steps = comb_steps(PublicKey(mpz(1) << bits - 1))
    assert bits / 2 <= steps * TABLES * TEETH < bits / 2 + TABLES * TEETH


def test_indices_take_all_values_alike() -> None:
    indices = draw_indices(100_000 // TABLES, 1)
    assert indices.shape == (12_500, 1, TABLES)
    counts = np.bincount(indices.ravel(), minlength=1 << TEETH)
    expected = indices.size / (1 << TEETH)
    # 1023 degrees of freedom: chi square is above 1400 once in 10^14 runs.
    assert len(counts) == 1 << TEETH
    assert ((counts - expected) ** 2 / expected).sum() < 1400


def test_a_pool_is_filled_in_small_units_up_to_its_target() -> None:
    source = Counter()
    pool = RandomnessPool(source)
    units = []
    while pool.prepare(20):
        units.append(source.drawn)
    assert source.drawn == pool.stored == 20
    assert len(units) > 1
    assert not pool.prepare(10)
    assert source.drawn == 20


@given(st.lists(st.integers(0, 12) | st.none(), max_size=12))
def test_a_pool_never_hands_out_a_residue_twice(takes: list[int | None]) -> None:
    pool = RandomnessPool(Counter())
    taken: list[int] = []
    for count in takes:
        if count is None:
            pool.prepare(15)
        else:
            piece = pool.take(count).tolist()
            assert len(piece) == count
            taken += piece
    assert len(set(taken)) == len(taken)
    assert 0 not in taken


def test_a_pool_keeps_no_copy_of_what_it_has_handed_out() -> None:
    pool = RandomnessPool(Counter())
    while pool.prepare(12):
        pass
    first = pool._residues
    taken = set(pool.take(5).tolist())
    assert taken.isdisjoint(first.tolist())
    while pool.prepare(20):
        pass
    assert not first.any()
    taken |= set(pool.take(20).tolist())
    assert len(taken) == 25
    assert not pool._residues.any()


def test_taking_uses_what_is_stored_before_it_draws() -> None:
    source = Counter()
    pool = RandomnessPool(source)
    pool.prepare(5)
    pool.take(3)
    assert source.drawn == 5
    pool.take(4)
    assert source.drawn == 7
