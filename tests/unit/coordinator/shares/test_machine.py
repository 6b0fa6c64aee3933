"""The coordinator's state machine on shares: sessions, replay, new attempts, and parties that do not keep the rules."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.ciphertexts import some_ciphertexts
from tests.support.simulated_parties import SharedTable, SimulatedParties, make_table, train_with
from trilateral.common.base.errors import ProtocolError
from trilateral.common.base.roles import PARTIES, Role
from trilateral.common.config.job import JobConfig
from trilateral.common.jobs.journal import Journal
from trilateral.common.pb.v1.jobs_pb2 import JobStatus
from trilateral.common.protocol.messages import (
    Began,
    BeginRound,
    ElementPiece,
    Envelope,
    Evaluation,
    FinishJob,
    JobEnded,
    Kind,
    Message,
    OpenJob,
    Ready,
    RoundKey,
    RoundTimedOut,
    RowsDone,
    VectorPiece,
)
from trilateral.common.protocol.shares.session import SESSION
from trilateral.common.shares.keys import SEED_BYTES
from trilateral.coordinator.job_record import JobRecord
from trilateral.coordinator.machine import CoordinatorMachine, Past
from trilateral.coordinator.plan import Observation
from trilateral.coordinator.rounds import check_memory
from trilateral.coordinator.shares.computation import SharesOffer

JOB = JobConfig(name="job", dataset="data", protocol="shares", tolerance=1e-6, evaluate_every=2)
TABLE = make_table(n_train=500, n_holdout=60)


class Session:
    """A coordinator whose parties answer only as far as a test lets them."""

    def __init__(self, job: JobConfig = JOB, table: SharedTable = TABLE, past: Past | None = None) -> None:
        self.machine = CoordinatorMachine(job, SharesOffer(job), past=past)
        self.parties = SimulatedParties(job, table)
        self.sent: list[Envelope] = []
        self.ready: dict[Role, Ready] = {}
        for envelope in self.machine.start():
            for party, message in self.parties.handle(envelope.to, envelope.message):
                assert isinstance(message, Ready)
                self.ready[party] = message

    def begin(self, change: Callable[[Role, Ready], Ready] = lambda _, ready: ready) -> None:
        for party, ready in self.ready.items():
            self.give(party, change(party, ready))

    def give(self, sender: Role, message: Message) -> list[Envelope]:
        answers = list(self.machine.handle(sender, message))
        self.sent += answers
        return answers

    def answers(self, envelopes: list[Envelope]) -> list[tuple[Role, Message]]:
        """What the parties answer, without delivering it."""
        return [
            answer
            for envelope in envelopes
            if envelope.to in PARTIES
            for answer in self.parties.handle(envelope.to, envelope.message)
        ]

    def play_round(self) -> None:
        """Deliver everything until the next round has begun."""
        begun, self.sent = self.sent, []
        for sender, answer in self.answers(begun):
            self.give(sender, answer)


def begun(session: Session) -> Session:
    session.begin()
    return session


# --- sessions


def test_every_session_and_every_party_has_a_seed_of_its_own() -> None:
    offers = [envelope.message for _ in range(2) for envelope in CoordinatorMachine(JOB, SharesOffer(JOB)).start()]
    seeds = {offer.seed for offer in offers if isinstance(offer, OpenJob)}
    assert len(seeds) == 4
    assert {len(seed) for seed in seeds} == {SEED_BYTES}


def test_a_later_session_replays_what_earlier_ones_have_shown() -> None:
    parties = SimulatedParties(JOB, TABLE)
    whole = train_with(JOB, parties)
    points = [parties.point(report.key) for report in whole.reports]
    observations = [
        Observation(one.loss, one.gradient, holdout_loss=one.holdout_loss)
        for one in whole.observations
        if one.loss is not None
    ]
    session = Session()
    before = {party: replace(ready, round=0) for party, ready in session.ready.items()}
    n_done = len(observations) - 2

    again = SimulatedParties(JOB, TABLE)
    trained = train_with(JOB, again, Past(b"first", before, observations[:n_done]))

    assert trained.reports[0].key == RoundKey(n_done + 1, 1)
    assert np.allclose(again.point(trained.reports[0].key), points[n_done], atol=1e-6)
    assert not [message for message in trained.own if isinstance(message, Began)]
    assert TABLE.loss(trained.coef) - TABLE.loss(TABLE.optimum()) < 1e-4


def test_a_party_that_has_lost_its_place_gets_shares_that_say_nothing_and_no_dealt_rows() -> None:
    whole = train_with(JOB, SimulatedParties(JOB, TABLE))
    observations = [
        Observation(one.loss, one.gradient, holdout_loss=one.holdout_loss)
        for one in whole.observations
        if one.loss is not None
    ]
    session = Session(past=Past(b"first", Session().ready, observations[:2]))
    session.begin(lambda party, ready: replace(ready, round=2 if party is Role.HOST else 1))

    told = [envelope for envelope in session.sent if isinstance(envelope.message, BeginRound)]
    over = [envelope for envelope in told if isinstance(envelope.message, BeginRound) and envelope.message.over]
    assert [envelope.to for envelope in over] == [Role.GUEST]
    dealt = {envelope.message.key for envelope in session.sent if isinstance(envelope.message, ElementPiece)}
    assert RoundKey(2, 1) not in dealt


@pytest.mark.parametrize(
    "change",
    [
        {"n_holdout": 61},
        {"norm_bits": 9},
        {"weight_bits": 0, "total_weight": 700.0},
    ],
)
def test_a_later_session_must_find_the_sizes_of_the_first(change: dict[str, Any]) -> None:
    session = Session(past=Past(b"first", Session().ready, []))
    session.give(Role.HOST, session.ready[Role.HOST])
    guest = session.ready[Role.GUEST]
    assert guest.shares is not None
    with pytest.raises(ProtocolError, match="not those with which the job began"):
        session.give(Role.GUEST, replace(guest, shares=replace(guest.shares, **change)))


def test_the_journal_keeps_sizes_and_observations_but_nothing_of_a_stream(tmp_path: Path) -> None:
    job = JOB.model_copy(update={"l2": 0.1})
    table = replace(TABLE, penalty=np.arange(6.0))
    parties = SimulatedParties(job, table)
    trained = train_with(job, parties)
    journal = Journal(tmp_path, Role.COORDINATOR, kept_days=1)
    journal.add(b"id", job)
    record = JobRecord(journal, b"id", "job")
    for message in trained.own:
        if isinstance(message, Began):
            record.write(message, JobStatus())
            ready = message.ready
    for one in trained.observations:
        record.write(one, JobStatus())

    past = record.past()
    session = Session(job, table, past)
    session.begin()  # the same sizes are found again
    assert len(past.observations) == len(trained.observations)
    journal.close()
    stored = b"".join(file.read_bytes() for file in tmp_path.rglob("*") if file.is_file())
    for each in ready.values():
        assert each.shares is not None
        assert each.shares.seed not in stored
        assert each.shares.seed.hex().encode() not in stored


# --- attempts


def test_a_new_attempt_has_other_shares_and_the_training_goes_on() -> None:
    session = begun(Session())
    session.play_round()
    first = [envelope.message for envelope in session.sent if isinstance(envelope.message, BeginRound)]
    assert {message.key for message in first} == {RoundKey(2, 1)}
    lost, session.sent = session.sent, []
    session.give(Role.COORDINATOR, RoundTimedOut(RoundKey(2, 1)))
    second = [envelope.message for envelope in session.sent if isinstance(envelope.message, BeginRound)]

    assert {message.key for message in second} == {RoundKey(2, 2)}
    for one, other in zip(first, second, strict=True):
        shares = [message.shares.weights for message in (one, other) if message.shares is not None]
        for name in ("score", "opened", "loss"):
            assert not np.isin(*(getattr(each, name) for each in shares)).any()
    for sender, late in session.answers(lost):  # of the first attempt
        assert session.give(sender, late) == [] or isinstance(late, RowsDone)
    session.play_round()
    assert RoundKey(3, 1) in {m.message.key for m in session.sent if isinstance(m.message, BeginRound)}


def test_repeated_messages_change_nothing() -> None:
    session = begun(Session())
    begin, session.sent = session.sent, []
    answers = session.answers(begin)
    for sender, answer in answers:
        session.give(sender, answer)
        assert session.give(sender, answer) == []
    session.play_round()
    assert session.sent


def test_late_messages_of_rounds_change_nothing_once_the_training_has_ended() -> None:
    session = begun(Session(JOB.model_copy(update={"epochs": 2, "evaluate_every": None})))
    late: list[tuple[Role, Message]] = []
    while not any(isinstance(envelope.message, FinishJob) for envelope in session.sent):
        begun_round, session.sent = session.sent, []
        for sender, answer in session.answers(begun_round):
            late.append((sender, answer))
            session.give(sender, answer)
    late += [(party, RowsDone(RoundKey(number, 1), 512)) for party in PARTIES for number in (1, 2)]
    for sender, answer in late:
        assert session.give(sender, answer) == []
    assert session.give(Role.COORDINATOR, RoundTimedOut(RoundKey(2, 1))) == []


# --- what a party must not send


def first_sums(session: Session, sender: Role) -> dict[RoundKey, ElementPiece]:
    """The label products and the sums of the first round, of one party."""
    pieces = [message for party, message in session.answers(session.sent) if party is sender]
    return {piece.key: piece for piece in pieces if isinstance(piece, ElementPiece)}


def test_sums_of_another_length_are_refused() -> None:
    changes: list[dict[str, Any]] = [{"total": 8}, {"n_rows": 5}, {"offset": 1}]
    for change in changes:
        session = begun(Session())
        pieces = first_sums(session, Role.HOST)
        session.give(Role.HOST, pieces[SESSION])
        with pytest.raises(ProtocolError):
            session.give(Role.HOST, replace(pieces[RoundKey(1, 1)], **change))


def test_label_products_of_another_length_are_refused() -> None:
    session = begun(Session())
    products = first_sums(session, Role.GUEST)[SESSION]
    with pytest.raises(ProtocolError, match="12 are expected"):
        session.give(Role.GUEST, replace(products, total=18))
    with pytest.raises(ProtocolError, match="out of order"):
        session.give(Role.GUEST, replace(products, offset=3))


def test_sums_before_the_label_products_are_refused() -> None:
    session = begun(Session())
    with pytest.raises(ProtocolError, match="before its products with the labels"):
        session.give(Role.HOST, first_sums(session, Role.HOST)[RoundKey(1, 1)])


def test_sums_before_everything_was_dealt_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trilateral.coordinator.shares.dealing.window_rows", lambda *_: 8192)
    session = begun(Session(table=make_table(n_train=20_000, n_holdout=16, n_host=1, n_guest=1)))
    session.play_round()
    sums = ElementPiece(RoundKey(2, 1), Kind.SUMS, 0, 3, 3, np.zeros(3, np.uint64))
    with pytest.raises(ProtocolError, match="before all rows of the round were dealt"):
        session.give(Role.HOST, sums)


@pytest.mark.parametrize(
    "message",
    [
        VectorPiece(RoundKey(1, 1), Kind.GRADIENT, 0, 1, some_ciphertexts()),
        ElementPiece(RoundKey(1, 1), Kind.DEALT, 0, 16, 16, np.zeros(16, np.uint64)),
        ElementPiece(SESSION, Kind.MASKED_COLUMNS, 0, 16, 16, np.zeros(16, np.uint64)),
        ElementPiece(RoundKey(9, 1), Kind.SUMS, 0, 7, 7, np.zeros(7, np.uint64)),
        Evaluation(RoundKey(1, 1), 0.5, 0.5),
        RowsDone(RoundKey(9, 1), 16),
        RowsDone(RoundKey(1, 1), 16),
        FinishJob(1, np.zeros(0), 0.0, 1, "", None),
    ],
    ids=lambda message: type(message).__name__,
)
def test_messages_of_another_protocol_kind_or_round_are_refused(message: Message) -> None:
    session = begun(Session())
    with pytest.raises(ProtocolError):
        session.give(Role.GUEST, message)


def test_a_party_may_not_send_more_values_than_the_job_can_have() -> None:
    session = begun(Session(JOB.model_copy(update={"epochs": 1, "evaluate_every": None})))
    products = first_sums(session, Role.HOST)[SESSION]

    def flood() -> None:
        for _ in range(10_000):
            session.give(Role.HOST, products)

    with pytest.raises(ProtocolError, match="elements that this job can have"):
        flood()


@pytest.mark.parametrize(
    ("party", "change", "said"),
    [
        (Role.GUEST, {"n_holdout": 59}, "the host holds out 60 rows and the guest 59"),
        (Role.GUEST, {"n_holdout": 0}, "number of hold-out rows"),
        (Role.HOST, {"norm_bits": 10**6}, "size of its values"),
        (Role.GUEST, {"penalty": np.ones(3)}, "penalty"),
        (Role.GUEST, {"weight_bits": 0, "total_weight": np.nan}, "sum of sample weights"),
        (Role.GUEST, {"weight_bits": 0, "total_weight": 0.0}, "sum of sample weights"),
        (Role.GUEST, {"total_weight": 5.0}, "sum of sample weights"),
        (Role.HOST, {"weight_bits": 0, "total_weight": 5.0}, "only the guest"),
        (Role.GUEST, {"weight_bits": 60, "total_weight": 5.0}, "do not fit"),
        (Role.GUEST, {"seed": bytes(5)}, "seed"),
    ],
)
def test_sizes_that_cannot_be_are_refused(party: Role, change: dict[str, Any], said: str) -> None:
    session = Session()

    def changed(role: Role, ready: Ready) -> Ready:
        assert ready.shares is not None
        return replace(ready, shares=replace(ready.shares, **change)) if role is party else ready

    with pytest.raises(ProtocolError, match=said):
        session.begin(changed)


@pytest.mark.parametrize("penalty", [np.full(3, -1.0), np.full(3, np.inf), np.zeros(0), np.ones(4)])
def test_a_penalty_that_is_not_a_spectrum_is_refused(penalty: np.ndarray) -> None:
    session = Session(JOB.model_copy(update={"l2": 1.0}), replace(TABLE, penalty=np.ones(6)))

    def changed(_: Role, ready: Ready) -> Ready:
        assert ready.shares is not None
        return replace(ready, shares=replace(ready.shares, penalty=penalty))

    with pytest.raises(ProtocolError, match="penalty"):
        session.begin(changed)


def test_both_parties_must_be_ready_for_the_jobs_protocol() -> None:
    session = Session()
    with pytest.raises(ProtocolError, match="another protocol than shares"):
        session.begin(lambda _, ready: replace(ready, shares=None))


def test_large_tables_are_trained_and_too_many_batches_are_not() -> None:
    check_memory(JOB, 10**9, 2 * 10**4)
    batches = JobConfig.model_validate(
        {"name": "job", "dataset": "data", "protocol": "shares", "algorithm": {"name": "sgd"}, "batch": 10}
    )
    with pytest.raises(ProtocolError, match="the coordinator would need"):
        check_memory(batches, 10**7, 100)


def test_classes_whose_weights_do_not_fit_the_last_message_are_refused_before_the_first_round() -> None:
    job = JobConfig(name="job", dataset="data", protocol="shares", classes=20)
    check_memory(job, 10**6, 6553)
    with pytest.raises(ProtocolError, match="131072 weights are the most"):
        check_memory(job, 10**6, 6554)


def test_a_training_that_leaves_the_range_is_given_up_without_asking_anybody() -> None:
    """Rows of norm 2^17 leave room for hardly any step."""
    session = Session(JOB.model_copy(update={"intercept": False}))

    def changed(_: Role, ready: Ready) -> Ready:
        assert ready.shares is not None
        return replace(ready, shares=replace(ready.shares, norm_bits=40))

    session.begin(changed)
    session.play_round()
    ended = [envelope.message for envelope in session.sent if isinstance(envelope.message, JobEnded)]
    assert [message.loss for message in ended] == [None]
    assert "out of range" in ended[0].reason
    assert not [envelope for envelope in session.sent if isinstance(envelope.message, BeginRound)]
