"""How much memory a peer can make another process hold, by ciphertexts or by sizes that no honest peer has."""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from tests.support.ciphertexts import some_ciphertexts
from tests.support.three_machines import REAL, Tables, make_tables, prove_ids
from trilateral.common.base.errors import ProtocolError
from trilateral.common.base.roles import PARTIES, Role
from trilateral.common.config.job import JobConfig, Lbfgs, Sgd, Sqn
from trilateral.common.paillier.keys import PrivateKey
from trilateral.common.protocol import batches
from trilateral.common.protocol.bounds import PIECE
from trilateral.common.protocol.intake import VectorBounds
from trilateral.common.protocol.messages import Kind, Ready, RoundKey, VectorPiece
from trilateral.common.protocol.scales import round_scale
from trilateral.coordinator import machine
from trilateral.coordinator.rounds import check_memory
from trilateral.guest_party.arithmetic import GuestArithmetic
from trilateral.host_party.arithmetic import HostArithmetic

# --- ciphertexts for a round that has not begun

JOB = JobConfig(name="attacked", dataset="made", algorithm=Lbfgs(), key_bits=512, holdout=0.0)
N_ROWS = 4_000
HONEST = round_scale(JOB, N_ROWS, N_ROWS).layout.n_groups(N_ROWS)
"""Ciphertexts of an honest vector."""
PEER = {Role.HOST: Role.GUEST, Role.GUEST: Role.HOST}
KINDS = {Role.HOST: (Kind.RESIDUAL, Kind.TOTAL_CHANGE), Role.GUEST: (Kind.SCORES, Kind.SCORE_CHANGE)}
"""The long vectors that each party receives."""


@pytest.fixture(scope="module")
def tables() -> Tables:
    return make_tables(JOB, n_rows=N_ROWS)


def pieces(kind: Kind, total: int) -> Iterator[VectorPiece]:
    for offset in range(0, total, PIECE):
        yield VectorPiece(RoundKey(5, 1), kind, offset, total, some_ciphertexts(*[7] * min(PIECE, total - offset)))


def n_held(victim: Role, tables: Tables, private_key: PrivateKey) -> int:
    """Send a party as much as it takes before any round has begun; return how many ciphertexts it keeps."""
    data = tables.host if victim is Role.HOST else tables.guest
    party: Any = REAL.host(JOB, data, private_key) if victim is Role.HOST else REAL.guest(JOB, data, private_key)
    prove_ids(party, data)
    for kind in KINDS[victim]:
        for total in (N_ROWS, HONEST):
            with suppress(ProtocolError):
                for piece in pieces(kind, total):
                    list(party.handle(PEER[victim], piece))
    return int(party._intakes[PEER[victim]].n_early)


@pytest.mark.parametrize("victim", PARTIES)
def test_a_party_keeps_at_most_an_honest_vector_before_a_round(
    victim: Role, tables: Tables, private_key: PrivateKey
) -> None:
    """The host keeps nothing, because each vector that it receives answers one of its own."""
    assert n_held(victim, tables, private_key) == (0 if victim is Role.HOST else HONEST)


@pytest.mark.parametrize("victim", PARTIES)
def test_without_the_bounds_it_keeps_two_ciphertexts_for_each_row(
    victim: Role, tables: Tables, private_key: PrivateKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lax(self: object) -> dict[Role, VectorBounds]:
        longest = dict.fromkeys(KINDS[victim], N_ROWS)
        return {PEER[victim]: VectorBounds(longest, early=longest)}

    for arithmetic in (HostArithmetic, GuestArithmetic):
        monkeypatch.setattr(arithmetic, "bounds", property(lax))
    assert n_held(victim, tables, private_key) == 2 * N_ROWS >= 8 * HONEST


# --- sizes that the parties report to the coordinator


def report(job: JobConfig, ready: Ready, private_key: PrivateKey) -> None:
    coordinator = REAL.coordinator(job, private_key)
    for party in PARTIES:
        list(coordinator.handle(party, ready))


MANY_BATCHES = JOB.model_copy(update={"algorithm": Sgd(), "batch": 1})
LONG_MEMORY = JOB.model_copy(update={"algorithm": Sqn(memory=100, interval=1000), "batch": 60})
LARGEST = Ready(2**31, 2**16)
"""The largest sizes that a message can have."""


@pytest.mark.parametrize("job", [MANY_BATCHES, LONG_MEMORY], ids=["rows", "columns"])
def test_the_coordinator_refuses_sizes_before_it_makes_anything_of_them(
    job: JobConfig, private_key: PrivateKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    def order(n_rows: int, *_: object) -> object:
        raise AssertionError(f"{n_rows} numbers are drawn")

    monkeypatch.setattr(batches, "_order", order)
    with pytest.raises(ProtocolError, match=r"the coordinator would need \d+ MiB for the training, .* 1024: raise"):
        report(job, LARGEST, private_key)


def test_without_the_check_it_draws_as_many_numbers_as_the_parties_claim_to_have_rows(
    private_key: PrivateKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[int] = []

    def order(n_rows: int, *_: object) -> object:
        drawn.append(n_rows)
        raise MemoryError

    monkeypatch.setattr(batches, "_order", order)
    monkeypatch.setattr(machine, "check_memory", lambda *_: None)
    with pytest.raises(MemoryError):
        report(MANY_BATCHES, LARGEST, private_key)
    assert drawn == [2**31]


@pytest.mark.parametrize(
    "job",
    [JOB, JOB.model_copy(update={"algorithm": Sqn(memory=100), "batch": 1000, "epochs": 1000})],
    ids=["lbfgs", "sqn"],
)
def test_sizes_of_a_large_training_are_taken(job: JobConfig) -> None:
    """A billion rows, and ten thousand columns at each party."""
    check_memory(job, 10**9, 2 * 10**4)
