"""A Paillier round by pieces: what is on its way is bounded, and neither that nor the engine changes the model."""

from collections import Counter
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from gmpy2 import mpz

from tests.support.late_engine import LateEngine
from tests.support.three_machines import (
    REAL,
    Outcome,
    Workshop,
    make_machines,
    make_tables,
    prove_ids,
    run_machines,
)
from tests.support.transparent import TRANSPARENT
from trilateral.common.base.errors import BadCiphertextError, ProtocolError
from trilateral.common.base.roles import Role
from trilateral.common.compute.engine import OpenEngine
from trilateral.common.compute.local import LocalEngine
from trilateral.common.config.job import JobConfig, Lbfgs, Sqn
from trilateral.common.paillier.ciphertexts import Ciphertexts
from trilateral.common.paillier.keys import PrivateKey, generate_private_key
from trilateral.common.paillier.packing import SlotLayout
from trilateral.common.protocol import arithmetic, inner_products, paillier_tasks, scales
from trilateral.common.protocol.batches import WHOLE_SET
from trilateral.common.protocol.messages import BeginRound, Envelope, Kind, RoundKey, RowsDone, VectorPiece
from trilateral.guest_party import arithmetic as guest
from trilateral.host_party import arithmetic as host

PIECE = 4
"""Ciphertexts of a piece in these tests."""
N_ROWS = 50
N_PIECES = 13
"""Pieces of a vector with one row in a ciphertext."""
LBFGS = JobConfig(name="windows", dataset="made", algorithm=Lbfgs(), epochs=4, key_bits=384, slots=1, holdout=0.0)
SQN = LBFGS.model_copy(update={"algorithm": Sqn(interval=2, curvature_batch=30), "batch": 20})
KEY = generate_private_key(384)
KINDS = {Kind.SCORES: Kind.RESIDUAL, Kind.SCORE_CHANGE: Kind.TOTAL_CHANGE}


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (arithmetic, scales, paillier_tasks, guest, host):
        monkeypatch.setattr(module, "PIECE", PIECE)
    monkeypatch.setattr(inner_products, "TASKS_PER_SLOT", 1)


def set_window(monkeypatch: pytest.MonkeyPatch, n_pieces: int) -> None:
    monkeypatch.setattr(arithmetic, "window_pieces", lambda job: n_pieces)


def run(
    job: JobConfig,
    tamper: Callable[[Role, Envelope], list[Envelope]] = lambda sender, envelope: [envelope],
    *,
    key: PrivateKey = KEY,
    workshop: Workshop = TRANSPARENT,
    open_engine: OpenEngine = LocalEngine,
) -> Outcome:
    shop = Workshop(workshop.make_cipher, workshop.make_decryptor, workshop.measure, open_engine)
    return run_machines(make_machines(job, make_tables(job, N_ROWS), key, shop), tamper=tamper)


class OnTheirWay:
    """How many pieces the host has sent without an answer, at most, in any round."""

    def __init__(self) -> None:
        self.most = 0
        self.n_confirmations = 0
        self._sent: Counter[RoundKey] = Counter()
        self._answered: Counter[RoundKey] = Counter()

    def __call__(self, sender: Role, envelope: Envelope) -> list[Envelope]:
        message = envelope.message
        if isinstance(message, VectorPiece) and message.kind in KINDS:
            self._sent[message.key] += 1
            self.most = max(self.most, self._sent[message.key] - self._answered[message.key])
        if isinstance(message, VectorPiece) and message.kind in KINDS.values():
            self._answered[message.key] += 1
        if isinstance(message, RowsDone) and envelope.to is Role.HOST:
            self.n_confirmations += 1
            self._answered[message.key] = message.n_rows // PIECE
        return [envelope]


@pytest.mark.parametrize("job", [LBFGS, SQN], ids=["lbfgs", "sqn"])
@pytest.mark.parametrize("window", [2, 5])
def test_the_host_sends_no_more_than_a_window_ahead(
    job: JobConfig, window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_window(monkeypatch, window)
    ways = OnTheirWay()
    outcome = run(job, ways)
    assert ways.most == window
    if job is SQN:
        assert any(report.loss_only for report in outcome.reports)
        assert ways.n_confirmations > 0


def test_without_a_window_a_whole_vector_is_on_its_way(monkeypatch: pytest.MonkeyPatch) -> None:
    set_window(monkeypatch, 1000)
    ways = OnTheirWay()
    run(LBFGS, ways)
    assert ways.most == N_PIECES


@pytest.mark.parametrize("job", [LBFGS, SQN], ids=["lbfgs", "sqn"])
def test_neither_the_window_nor_the_engine_changes_a_bit_of_the_model(
    job: JobConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = run(job).coef
    for n_slots in (1, 2, 4):
        for window in (2, 5, 1000):
            set_window(monkeypatch, window)
            assert np.array_equal(run(job, open_engine=partial(LateEngine, n_slots)).coef, expected)


def test_workers_compute_the_same_with_several_rows_in_a_ciphertext(monkeypatch: pytest.MonkeyPatch) -> None:
    # A mask may carry one unit into the readable slot, whoever adds it.
    monkeypatch.setattr(SlotLayout, "mask", lambda self: mpz(0))
    job = LBFGS.model_copy(update={"key_bits": 1024, "slots": 3, "epochs": 2})
    key = generate_private_key(1024)
    outcomes = [run(job, key=key, workshop=REAL, open_engine=each) for each in (LocalEngine, LateEngine)]
    assert np.array_equal(outcomes[0].coef, outcomes[1].coef)


def test_both_parties_tell_the_coordinator_how_many_rows_they_are_done_with() -> None:
    outcome = run(SQN)
    reports = [
        (sender, message)
        for sender, to, message in outcome.traffic
        if isinstance(message, RowsDone) and to is Role.COORDINATOR
    ]
    for party in (Role.HOST, Role.GUEST):
        told = [message for sender, message in reports if sender is party]
        for key in {message.key for message in told}:
            rows = [message.n_rows for message in told if message.key == key]
            assert rows == sorted(set(rows))
    assert {sender for sender, _ in reports} == {Role.HOST, Role.GUEST}
    # A batch of 25 rows, and after it 30 rows for the curvature without the last piece, which the answer shows.
    assert max(message.n_rows for _, message in reports) == 25 + 28


@pytest.mark.parametrize("open_engine", [LocalEngine, LateEngine])
def test_a_bad_ciphertext_is_refused_wherever_it_is_checked(open_engine: OpenEngine) -> None:
    tables = make_tables(LBFGS, N_ROWS)
    party = Workshop(open_engine=open_engine).host(LBFGS, tables.host, KEY)
    prove_ids(party, tables.host)
    zeros = np.zeros(len(party.coef))
    list(party.handle(Role.COORDINATOR, BeginRound(RoundKey(1, 1), zeros, WHOLE_SET, gradient=True)))
    bad = Ciphertexts.of([0] * PIECE, KEY.public_key.ciphertext_bytes)

    def go_on() -> None:
        for offset in range(0, N_ROWS, PIECE):
            piece = VectorPiece(RoundKey(1, 1), Kind.RESIDUAL, offset, N_ROWS, bad[: N_ROWS - offset])
            list(party.handle(Role.GUEST, piece))
        while party.under_way:
            list(party.settle())

    with pytest.raises(BadCiphertextError):
        go_on()


def test_a_failed_task_of_an_attempt_that_is_over_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = LateEngine()
    tables = make_tables(LBFGS, N_ROWS)
    shop = Workshop(TRANSPARENT.make_cipher, TRANSPARENT.make_decryptor, TRANSPARENT.measure, lambda: engine)
    party = shop.guest(LBFGS, tables.guest, KEY, tables.start)
    prove_ids(party, tables.guest)
    n_columns = len(party.coef)
    begin = BeginRound(RoundKey(1, 1), np.zeros(n_columns), WHOLE_SET, gradient=True)
    list(party.handle(Role.COORDINATOR, begin))
    zeros = Ciphertexts.of([0] * PIECE, KEY.public_key.ciphertext_bytes)

    def send(key: RoundKey) -> None:
        for offset in range(0, inner_products.task_pieces(N_PIECES, engine) * PIECE, PIECE):
            list(party.handle(Role.HOST, VectorPiece(key, Kind.SCORES, offset, N_ROWS, zeros)))

    send(RoundKey(1, 1))
    assert party.under_way
    list(party.handle(Role.COORDINATOR, BeginRound(RoundKey(1, 2), np.zeros(n_columns), WHOLE_SET, gradient=True)))
    assert not party.under_way
    assert engine.n_cancelled == 1
    assert list(party.settle()) == []
    send(RoundKey(1, 2))
    with pytest.raises(BadCiphertextError):
        list(party.settle())


def test_the_host_refuses_to_be_told_of_rows_that_it_has_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    set_window(monkeypatch, 2)
    tables = make_tables(LBFGS, N_ROWS)
    party = TRANSPARENT.host(LBFGS, tables.host, KEY)
    prove_ids(party, tables.host)
    zeros = np.zeros(len(party.coef))

    def tell(key: RoundKey, n_rows: int) -> list[Envelope]:
        return list(party.handle(Role.GUEST, RowsDone(key, n_rows)))

    with pytest.raises(ProtocolError, match="has not begun"):
        tell(RoundKey(1, 1), PIECE)
    list(party.handle(Role.COORDINATOR, BeginRound(RoundKey(1, 1), zeros, WHOLE_SET, gradient=False)))
    with pytest.raises(ProtocolError, match="cannot be done with 12 rows"):
        tell(RoundKey(1, 1), 3 * PIECE)
    assert len(tell(RoundKey(1, 1), PIECE)) == 1
    assert tell(RoundKey(1, 1), PIECE) == []  # The same again.
    list(party.handle(Role.COORDINATOR, BeginRound(RoundKey(2, 1), zeros, WHOLE_SET, gradient=True)))
    assert tell(RoundKey(1, 1), 2 * PIECE) == []  # The round is over.
    with pytest.raises(ProtocolError, match="cannot be done with 4 rows"):
        tell(RoundKey(2, 1), PIECE)
