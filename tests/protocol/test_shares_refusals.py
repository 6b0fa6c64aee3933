"""What the parties refuse under the protocol on shares, and what they say: each rule broken once."""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.protocol.test_refusals import replacing
from tests.protocol.test_shares_training import make_job, weigh
from tests.support.ciphertexts import some_ciphertexts
from tests.support.shares_rounds import cut_small
from tests.support.three_machines import ANY_SEED, REAL, Tables, make_machines, make_tables, prove_ids, run_machines
from trilateral.common.base.errors import DataError, ProtocolError
from trilateral.common.base.roles import PARTIES, Role
from trilateral.common.config.job import JobConfig, Sgd
from trilateral.common.paillier.keys import PrivateKey
from trilateral.common.protocol.batches import WHOLE_SET
from trilateral.common.protocol.ids import NONCE_BYTES
from trilateral.common.protocol.messages import (
    BeginRound,
    ElementPiece,
    Envelope,
    FinishJob,
    IdChallenge,
    IdConfirmation,
    IdProof,
    Kind,
    Message,
    RoundKey,
    RoundShares,
    VectorPiece,
    WeightShares,
)

JOB = make_job(epochs=4)
N_TRAIN, N_ROWS = 120, 160
"""Of a table of 150 rows: 120 are padded to 128, and 30 hold-out rows to 32."""
PEER = {Role.HOST: Role.GUEST, Role.GUEST: Role.HOST}


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    cut_small(monkeypatch)


def tables_of(job: JobConfig = JOB, weight_bits: int | None = None) -> Tables:
    tables = weigh(make_tables(job, n_rows=150, n_host=2, n_guest=2), weight_bits)
    return Tables(tables.host, tables.guest)


def reason(
    key: PrivateKey,
    tamper: Callable[[Role, Envelope], list[Envelope]],
    job: JobConfig = JOB,
    weight_bits: int | None = None,
) -> str:
    """Why a training ended without a model."""
    outcome = run_machines(make_machines(job, tables_of(job, weight_bits), key), tamper=tamper)
    assert outcome.ended.loss is None
    assert len(outcome.results) < 2
    return outcome.ended.reason


def changing(
    kind: Kind, change: Callable[[ElementPiece], ElementPiece], sender: Role | None = None
) -> Callable[[Role, Envelope], list[Envelope]]:
    """Tamper with the first piece of a kind."""
    changed: list[Message] = []

    def tamper(by: Role, envelope: Envelope) -> list[Envelope]:
        message = envelope.message
        if isinstance(message, ElementPiece) and message.kind is kind and sender in (None, by) and not changed:
            changed.append(message)
            return [Envelope(envelope.to, change(message))]
        return [envelope]

    return tamper


def shorter(piece: ElementPiece) -> ElementPiece:
    return replace(piece, elements=piece.elements[:-8])


# --- the start


@pytest.mark.parametrize("role", PARTIES)
@pytest.mark.parametrize("seed", [b"", bytes(31)])
def test_a_party_without_a_whole_seed_of_the_coordinator_is_not_made(
    role: Role, seed: bytes, private_key: PrivateKey
) -> None:
    make: Any = REAL.host if role is Role.HOST else REAL.guest
    data = tables_of().host if role is Role.HOST else tables_of().guest
    with pytest.raises(ProtocolError, match=f"the coordinator sent a seed of {len(seed)} bytes, but .* needs 32"):
        make(JOB, data, private_key, seed=seed)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (IdChallenge, "host: the guest sent a seed of 5 bytes with the proof of its IDs"),
        (IdProof, "guest: the host sent a seed of 5 bytes with the proof of its IDs"),
    ],
)
def test_a_seed_of_another_length_ends_the_job(kind: type[Message], said: str, private_key: PrivateKey) -> None:
    assert said in reason(private_key, replacing(kind, lambda message: replace(message, seed=bytes(5))))


def test_weights_of_more_bits_than_the_sums_can_hold_end_the_job(private_key: PrivateKey) -> None:
    said = reason(private_key, replacing(IdChallenge, lambda message: replace(message, weight_bits=40)))
    assert "host: these tables do not fit the protocol on shares" in said


def test_the_seed_and_the_weights_of_a_session_cannot_change(private_key: PrivateKey) -> None:
    tables = tables_of()
    host = REAL.host(JOB, tables.host, private_key)
    guest = REAL.guest(JOB, tables.guest, private_key)
    (challenge,) = guest.start()
    (proof,) = host.handle(Role.GUEST, challenge.message)
    confirmation, *_ = guest.handle(Role.HOST, proof.message)
    assert isinstance(challenge.message, IdChallenge)
    assert isinstance(proof.message, IdProof)
    sent = list(host.handle(Role.GUEST, confirmation.message))
    assert sent
    for change in ({"seed": ANY_SEED}, {"weight_bits": 3}):
        list(host.handle(Role.GUEST, replace(challenge.message, **change)))
        with pytest.raises(ProtocolError, match="the guest proved its IDs a second time and brought another seed"):
            list(host.handle(Role.GUEST, confirmation.message))
    with pytest.raises(ProtocolError, match="the host proved its IDs a second time and brought another seed"):
        list(guest.handle(Role.HOST, replace(proof.message, seed=ANY_SEED)))
    # The same proof again sends no column a second time.
    list(host.handle(Role.GUEST, challenge.message))
    assert list(host.handle(Role.GUEST, confirmation.message)) == []


def test_so_many_columns_that_their_products_do_not_fit_are_refused_before_anything_is_made_for_them(
    private_key: PrivateKey,
) -> None:
    """The other party names its number of columns."""
    job = make_job(algorithm=Sgd(), batch=4)
    told = replacing(IdChallenge, lambda message: replace(message, n_columns=2**21))
    said = reason(private_key, told, job)
    assert "host: the parties have 2097154 columns and 30 batches: the host would need 1488 MiB" in said
    assert "raise `batch`, or leave out columns" in said


def test_a_column_that_does_not_fit_is_refused_with_the_way_out(private_key: PrivateKey) -> None:
    tables = tables_of()
    columns = np.asarray(tables.host.block.holdout_columns).copy()
    columns[3, 1] = 2e6
    block = replace(tables.host.block, holdout_columns=columns)
    tables = Tables(replace(tables.host, block=block), tables.guest)
    outcome = run_machines(make_machines(JOB, tables, private_key))
    assert "set `preprocessing.clip`" in outcome.ended.reason
    assert "2000000" not in outcome.ended.reason


def test_a_penalty_that_mixes_columns_is_refused_if_the_job_has_one(private_key: PrivateKey) -> None:
    tables = tables_of()
    block = replace(tables.host.block, penalty=np.ones((2, 2)))
    data = replace(tables.host, block=block)
    assert REAL.host(JOB, data, private_key)
    with pytest.raises(DataError, match="the L2 penalty of these columns is not a sum over single columns"):
        REAL.host(make_job(l2=0.1), data, private_key)


def test_columns_that_are_not_scaled_are_refused(private_key: PrivateKey) -> None:
    block = tables_of().host.block
    data = replace(tables_of().host, block=replace(block, columns=np.asarray(block.columns) * 1.001))
    with pytest.raises(DataError, match="mean square exceeds 1"):
        REAL.host(JOB, data, private_key)


# --- who may say what


@pytest.mark.parametrize("role", PARTIES)
def test_vectors_of_the_other_protocol_are_refused(role: Role, private_key: PrivateKey) -> None:
    elements = ElementPiece(RoundKey(1, 1), Kind.MASKED_SCORES, 0, N_ROWS, 16, np.zeros(16, np.uint64))
    ciphertexts = VectorPiece(RoundKey(1, 1), Kind.SCORES, 0, 1, some_ciphertexts())
    paillier = JobConfig(name="other", dataset="made", key_bits=1024)
    for job, piece in ((JOB, ciphertexts), (paillier, elements)):
        machine = make_machines(job, tables_of(job), private_key)[role]
        with pytest.raises(ProtocolError, match=f"the {role} does not take a {type(piece).__name__}"):
            list(machine.handle(PEER[role], piece))


@pytest.mark.parametrize(
    ("kind", "sender"),
    [
        (Kind.DEALT, Role.GUEST),
        (Kind.MASKED_SCORES, Role.COORDINATOR),
        (Kind.SUMS, Role.GUEST),
        (Kind.GRADIENT, Role.COORDINATOR),
    ],
)
def test_a_kind_of_another_sender_is_refused(kind: Kind, sender: Role, private_key: PrivateKey) -> None:
    host = make_machines(JOB, tables_of(), private_key)[Role.HOST]
    with pytest.raises(ProtocolError, match=f"the {sender} sent {N_ROWS} rows of {kind} .* at most 0 of them"):
        list(host.handle(sender, ElementPiece(RoundKey(1, 1), kind, 0, N_ROWS, 16, np.zeros(16, np.uint64))))


# --- the rounds


def zeros(n: int) -> Any:
    return np.zeros(n, np.uint64)


def weights(score: int = 5, opened: int = 2, loss: int = 5) -> WeightShares:
    return WeightShares(zeros(score), zeros(opened), zeros(loss))


def begin(**changes: Any) -> BeginRound:
    first = BeginRound(
        RoundKey(1, 1), np.zeros(0), WHOLE_SET, gradient=True, shares=RoundShares(weights()), peer_columns=3
    )
    return replace(first, **changes)


def met_host(private_key: PrivateKey, job: JobConfig = JOB) -> Any:
    """A host that has exchanged its masked columns."""
    machines = make_machines(job, tables_of(job), private_key)
    ready = False

    def stop(sender: Role, envelope: Envelope) -> list[Envelope]:
        nonlocal ready
        ready = ready or envelope.to is Role.COORDINATOR
        return [] if envelope.to is Role.COORDINATOR else [envelope]

    with pytest.raises(AssertionError, match="stopped talking"):
        run_machines(machines, tamper=stop)
    assert ready
    return machines[Role.HOST]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"shares": None}, "as a round of another protocol: this job uses shares"),
        ({"evaluate_at": np.zeros(2)}, "with an evaluation: this job has at most 0"),
        ({"step": np.zeros(2)}, "with 0 columns, but was sent a step of 2 numbers"),
        ({"direction": np.zeros(2)}, "with curvature, which lbfgs does not use"),
        (
            {"shares": RoundShares(weights(score=4))},
            "4, 2, 5 shares of weights in round 1, but 5, 2 and 5 are expected",
        ),
        ({"shares": RoundShares(weights(opened=3))}, "5, 3, 5 shares of weights"),
        ({"shares": RoundShares(weights(loss=0))}, "5, 2, 0 shares of weights"),
        ({"shares": RoundShares(weights(), weights())}, "with an evaluation: this job has at most 0 of them"),
        ({"shares": RoundShares(None), "gradient": False}, "asks for nothing of the training rows in round 1"),
        ({"key": RoundKey(9, 1)}, "at most 6 rounds"),
        ({"key": RoundKey(2, 1)}, "the host is at round 0 .* but was sent a step of 0 numbers for round 2"),
        ({"key": RoundKey(1, 6)}, "at most 5 attempts"),
        ({"peer_columns": 4}, "told the host 3 of training columns, and the coordinator 4"),
    ],
)
def test_a_round_beyond_the_job_is_refused(change: dict[str, Any], said: str, private_key: PrivateKey) -> None:
    with pytest.raises(ProtocolError, match=said):
        list(met_host(private_key).handle(Role.COORDINATOR, begin(**change)))


def test_a_round_of_shares_is_refused_in_a_job_with_ciphertexts(private_key: PrivateKey) -> None:
    job = JobConfig(name="other", dataset="made", key_bits=1024)
    host = REAL.host(job, tables_of(job).host, private_key)
    prove_ids(host, tables_of(job).host, 3)
    with pytest.raises(ProtocolError, match="as a round of another protocol: this job uses paillier"):
        list(host.handle(Role.COORDINATOR, begin(step=np.zeros(2))))


def test_a_round_before_the_masked_columns_is_refused(private_key: PrivateKey) -> None:
    host = REAL.host(JOB, tables_of().host, private_key)
    prove_ids(host, tables_of().host, 3)
    with pytest.raises(ProtocolError, match="before the host had the masked columns of the guest"):
        list(host.handle(Role.COORDINATOR, begin()))


@pytest.mark.parametrize(
    "change",
    [
        {"gradient": False},
        {"shares": RoundShares(None)},
    ],
)
def test_another_attempt_at_a_round_must_ask_for_the_same(change: dict[str, Any], private_key: PrivateKey) -> None:
    host = met_host(private_key)
    list(host.handle(Role.COORDINATOR, begin()))
    with pytest.raises(ProtocolError, match="but its request differs"):
        list(host.handle(Role.COORDINATOR, begin(key=RoundKey(1, 2), **change)))


def test_an_attempt_is_not_begun_again_under_the_same_key(private_key: PrivateKey) -> None:
    """Other shares of the point would be hidden by the same masks."""
    host = met_host(private_key)
    assert list(host.handle(Role.COORDINATOR, begin()))
    assert list(host.handle(Role.COORDINATOR, begin(shares=RoundShares(weights())))) == []


@pytest.mark.parametrize("share", [None, zeros(4)])
def test_an_end_without_the_shares_of_all_weights_is_refused(share: Any, private_key: PrivateKey) -> None:
    finish = FinishJob(1, np.zeros(0), 0.5, 1, "enough", None, share)
    with pytest.raises(ProtocolError, match="ended the training with [04] shares of weights, but 5 are expected"):
        list(met_host(private_key).handle(Role.COORDINATOR, finish))


# --- pieces


@pytest.mark.parametrize(
    ("kind", "change", "said"),
    [
        (Kind.MASKED_COLUMNS, shorter, "elements for 16 rows of masked columns, but"),
        (Kind.MASKED_COLUMNS, lambda piece: replace(piece, n_rows=15), "for each of 8 rows or a multiple are expected"),
        (Kind.MASKED_COLUMNS, lambda piece: replace(piece, total=piece.total + 1), "at most 160 of them"),
        (Kind.MASKED_COLUMNS, lambda piece: replace(piece, offset=16), "but those from 0 of 160 are expected next"),
        (Kind.MASKED_SCORES, shorter, "24 elements of masked_scores for 32 rows, but 1 for each of 32 rows"),
        (Kind.MASKED_SCORES, lambda piece: replace(piece, n_rows=16), "for 16 rows, but 1 for each of 32 rows"),
        (Kind.MASKED_SCORES, lambda piece: replace(piece, n_rows=N_ROWS), "sent more rows of masked_scores"),
        (Kind.MASKED_SCORES, lambda piece: replace(piece, offset=32), "but those from 0 of 160 are expected next"),
        (Kind.MASKED_RESIDUAL, shorter, "24 elements of masked_residual for 32 rows, but 1 for each"),
        (Kind.MASKED_RESIDUAL, lambda piece: replace(piece, digest=bytes(64)), "have computed different integers"),
        (Kind.DEALT, shorter, "elements of dealt for 32 rows, but 1[89] for each of 32 rows are expected"),
        (Kind.DEALT, lambda piece: replace(piece, offset=32), "the coordinator sent rows from 32 of 160 of dealt"),
        (Kind.WEIGHTS, lambda piece: replace(piece, total=1), "those from 0 of [23] are expected next"),
        (Kind.WEIGHTS, shorter, "sent 0 shares as [23]"),
    ],
)
def test_a_piece_that_does_not_fit_ends_the_job(
    kind: Kind, change: Callable[[ElementPiece], ElementPiece], said: str, private_key: PrivateKey
) -> None:
    assert re.search(said, reason(private_key, changing(kind, change)))


def test_no_sum_leaves_for_the_coordinator_if_the_parties_have_computed_different_integers(
    private_key: PrivateKey,
) -> None:
    machines = make_machines(JOB, tables_of(), private_key)
    tamper = changing(Kind.MASKED_RESIDUAL, lambda piece: replace(piece, digest=bytes(64)), Role.GUEST)
    outcome = run_machines(machines, tamper=tamper)
    assert "the host and the guest have computed different integers from the same scores" in outcome.ended.reason
    key = next(
        message.key
        for _, _, message in outcome.traffic
        if isinstance(message, ElementPiece) and message.kind is Kind.MASKED_RESIDUAL
    )
    sums = [
        sender
        for sender, _, message in outcome.traffic
        if isinstance(message, ElementPiece) and message.kind is Kind.SUMS and message.key == key
    ]
    assert Role.HOST not in sums


@pytest.mark.parametrize(("kind", "limit"), [(Kind.MASKED_SCORES, 6), (Kind.DEALT, 6)])
def test_a_sender_far_ahead_in_a_round_is_refused(kind: Kind, limit: int, private_key: PrivateKey) -> None:
    job = make_job(epochs=4, holdout=0.0)
    tables = make_tables(job, n_rows=400, n_host=2, n_guest=2)
    machines = make_machines(job, Tables(tables.host, tables.guest), private_key)

    def stop(sender: Role, envelope: Envelope) -> list[Envelope]:
        return [] if envelope.to is Role.COORDINATOR else [envelope]

    with pytest.raises(AssertionError, match="stopped talking"):
        run_machines(machines, tamper=stop)
    host = machines[Role.HOST]
    list(host.handle(Role.COORDINATOR, begin()))
    sender, n_columns = (Role.GUEST, 1) if kind is Kind.MASKED_SCORES else (Role.COORDINATOR, 18)

    def send(number: int) -> None:
        piece = ElementPiece(RoundKey(1, 1), kind, 32 * number, 400, 32, zeros(32 * n_columns))
        list(host.handle(sender, piece))

    for number in range(limit):
        send(number)
    with pytest.raises(ProtocolError, match=f"the {sender} sent {kind} of block 7 of round 1, but at most 6 blocks"):
        send(limit)


@pytest.mark.parametrize("kind", [Kind.MASKED_SCORES, Kind.WEIGHTS, Kind.DEALT])
def test_a_row_kept_for_a_later_attempt_is_bounded(kind: Kind, private_key: PrivateKey) -> None:
    """Otherwise pieces of one row and megabytes of elements would fill the memory."""
    host = REAL.host(JOB, tables_of().host, private_key)
    sender = Role.COORDINATOR if kind is Kind.DEALT else Role.GUEST
    piece = ElementPiece(RoundKey(2, 1), kind, 0, 2, 1, zeros(40))
    with pytest.raises(ProtocolError, match=f"sent 40 elements of {kind} for 1 rows of round 2, but a row has at most"):
        list(host.handle(sender, piece))


@pytest.mark.parametrize(("kind", "most"), [(Kind.MASKED_SCORES, 6), (Kind.DEALT, 6), (Kind.WEIGHTS, 0)])
def test_pieces_kept_for_a_later_attempt_are_bounded(kind: Kind, most: int, private_key: PrivateKey) -> None:
    job = make_job(epochs=4, holdout=0.0)
    tables = make_tables(job, n_rows=400, n_host=2, n_guest=2)
    host = REAL.host(job, tables.host, private_key)
    sender = Role.COORDINATOR if kind is Kind.DEALT else Role.GUEST
    for number in range(most):
        piece = ElementPiece(RoundKey(2, 1), kind, 32 * number, 400, 32, zeros(32))
        for _ in range(2):
            assert list(host.handle(sender, piece)) == []
    with pytest.raises(ProtocolError, match="sent (more|400) rows of"):
        list(host.handle(sender, ElementPiece(RoundKey(2, 1), kind, 32 * most, 400, 32, zeros(32))))


def test_an_answer_to_scores_that_were_not_sent_is_refused(private_key: PrivateKey) -> None:
    host = met_host(private_key)
    piece = ElementPiece(RoundKey(1, 1), Kind.MASKED_RESIDUAL, 0, N_ROWS, 32, zeros(32))
    with pytest.raises(ProtocolError, match="rows of masked_residual for round 1, attempt 1, before it was asked"):
        list(host.handle(Role.GUEST, piece))


def test_the_rows_of_a_sender_in_a_whole_job_are_bounded(private_key: PrivateKey) -> None:
    host = met_host(private_key)
    list(host.handle(Role.COORDINATOR, begin(shares=RoundShares(None))))
    piece = ElementPiece(RoundKey(1, 1), Kind.MASKED_SCORES, 0, N_ROWS, N_ROWS, zeros(N_ROWS))

    def repeat() -> None:
        for _ in range(10_000):
            list(host.handle(Role.GUEST, piece))

    with pytest.raises(ProtocolError, match="sent more than the [0-9]+ rows that this job can have"):
        repeat()


def test_the_host_takes_no_confirmation_before_a_challenge(private_key: PrivateKey) -> None:
    host = REAL.host(JOB, tables_of().host, private_key)
    with pytest.raises(ProtocolError, match="before it asked for a proof"):
        list(host.handle(Role.GUEST, IdConfirmation(bytes(NONCE_BYTES))))
