import secrets

import gmpy2
import pytest
from gmpy2 import mpz
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trilateral.common.paillier.keys import generate_private_key
from trilateral.common.paillier.randomness import NthResidues, RandomnessPool

KEY = generate_private_key(256)
N = KEY.public_key.n
SOURCE = NthResidues(KEY.public_key)
EXPONENT_BYTES = 16


class Counter(NthResidues):
    """Draws 1, 2, 3, ... and so shows what is drawn when."""

    def __init__(self) -> None:
        self.drawn = 0

    def draw(self, count: int) -> list[mpz]:
        self.drawn += count
        return [mpz(drawn) for drawn in range(self.drawn - count + 1, self.drawn + 1)]


def test_draws_differ_and_encrypt_zero() -> None:
    draws = SOURCE.draw(200)
    assert len(set(draws)) == 200
    assert all(KEY.decrypt(draw) == 0 for draw in draws)


def test_draws_have_jacobi_symbol_one_and_half_are_squares() -> None:
    # A power of a square would always be one: the sign in -x^2 doubles the group.
    draws = SOURCE.draw(400)
    assert all(gmpy2.jacobi(draw, N) == 1 for draw in draws)
    assert 100 < sum(gmpy2.legendre(draw, KEY.p) == 1 for draw in draws) < 300


def test_each_source_has_a_base_of_its_own() -> None:
    other = NthResidues(KEY.public_key)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(secrets, "token_bytes", lambda size: bytes([1] + [0] * (size - 1)))
        assert SOURCE.draw(1) != other.draw(1)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(exponent=st.binary(min_size=EXPONENT_BYTES, max_size=EXPONENT_BYTES))
def test_a_draw_is_a_power_of_one_base_with_half_the_bits_of_n(
    monkeypatch: pytest.MonkeyPatch, exponent: bytes
) -> None:
    one = (1).to_bytes(EXPONENT_BYTES, "little")
    monkeypatch.setattr(secrets, "token_bytes", lambda size: {EXPONENT_BYTES: one}[size])
    [base] = SOURCE.draw(1)
    monkeypatch.setattr(secrets, "token_bytes", lambda size: {EXPONENT_BYTES: exponent}[size])
    assert SOURCE.draw(1) == [pow(int(base), int.from_bytes(exponent, "little"), int(N) ** 2)]


def test_a_pool_is_filled_in_small_units_up_to_its_target() -> None:
    source = Counter()
    pool = RandomnessPool(source)
    units = []
    while pool.prepare(20):
        units.append(source.drawn)
    assert source.drawn == 20
    assert len(units) > 1
    assert not pool.prepare(10)
    assert source.drawn == 20


@given(st.lists(st.integers(0, 12) | st.none(), max_size=12))
def test_a_pool_never_hands_out_a_residue_twice(takes: list[int | None]) -> None:
    pool = RandomnessPool(Counter())
    taken: list[mpz] = []
    for count in takes:
        if count is None:
            pool.prepare(15)
        else:
            piece = pool.take(count)
            assert len(piece) == count
            taken += piece
    assert len(set(taken)) == len(taken)


def test_taking_uses_what_is_stored_before_it_draws() -> None:
    source = Counter()
    pool = RandomnessPool(source)
    pool.prepare(5)
    pool.take(3)
    assert source.drawn == 5
    pool.take(4)
    assert source.drawn == 7
