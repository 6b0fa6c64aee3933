"""What the state machines refuse, and what they say: each rule of the protocol broken once."""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.support.ciphertexts import some_ciphertexts
from tests.support.three_machines import REAL, Tables, make_machines, make_tables, prove_ids, train
from trilateral.common.base.errors import ConfigError, DataError, ProtocolError
from trilateral.common.base.roles import Role
from trilateral.common.config.job import JobConfig, Sgd, Sqn
from trilateral.common.data.tables.id_list import Ids
from trilateral.common.paillier.ciphertexts import Ciphertexts
from trilateral.common.paillier.keys import PrivateKey
from trilateral.common.protocol.batches import Batch
from trilateral.common.protocol.messages import (
    BeginRound,
    Envelope,
    Finished,
    HoldoutScores,
    IdChallenge,
    IdConfirmation,
    IdProof,
    Kind,
    Message,
    OutOfRange,
    Ready,
    RoundKey,
    VectorPiece,
)
from trilateral.common.protocol.scales import round_scale
from trilateral.host_party.machine import HostMachine

JOB = JobConfig(name="refusals", dataset="made", algorithm=Sqn(interval=2), batch=30, epochs=2, key_bits=1024, seed=2)


def replacing(
    kind: type[Message], change: Callable[[Any], Message], vector: Kind | None = None
) -> Callable[[Role, Envelope], list[Envelope]]:
    """Tamper with the first message of a type, or with the first piece of a vector."""
    changed: list[Message] = []

    def tamper(sender: Role, envelope: Envelope) -> list[Envelope]:
        is_meant = vector is None or getattr(envelope.message, "kind", None) is vector
        if isinstance(envelope.message, kind) and is_meant and not changed:
            changed.append(envelope.message)
            return [Envelope(envelope.to, change(envelope.message))]
        return [envelope]

    return tamper


# --- the proof of the IDs


IDS = [f"id-{row:06d}" for row in range(120)]
"""Those of `make_tables`."""


def with_ids(tables: Tables, ids: list[str]) -> Tables:
    digest = Ids.of(ids).digest()
    return Tables(replace(tables.host, n_rows=len(ids), list_digest=digest), tables.guest)


def test_an_error_about_different_numbers_of_rows_names_both(private_key: PrivateKey) -> None:
    tables = make_tables(JOB)
    outcome = train(JOB, with_ids(tables, IDS[:-3]), private_key)
    assert outcome.ended.loss is None
    assert "117 rows" in outcome.ended.reason
    assert "120" in outcome.ended.reason
    assert not any(one in outcome.ended.reason for one in IDS)


def test_equally_many_but_different_ids_end_the_job_without_naming_one(private_key: PrivateKey) -> None:
    tables = make_tables(JOB)
    outcome = train(JOB, with_ids(tables, [*IDS[:-1], "zz-999"]), private_key)
    assert outcome.ended.loss is None
    assert "do not hold the same IDs" in outcome.ended.reason
    assert "zz-999" not in outcome.ended.reason
    assert not outcome.results


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        (IdProof, lambda proof: replace(proof, digest=bytes(32))),
        (IdConfirmation, lambda confirmation: IdConfirmation(bytes(32))),
    ],
)
def test_a_false_proof_ends_the_job(
    kind: type[Message], change: Callable[[Any], Message], private_key: PrivateKey
) -> None:
    outcome = train(JOB, make_tables(JOB), private_key, tamper=replacing(kind, change))
    assert "do not hold the same IDs" in outcome.ended.reason


def test_the_guests_own_digest_cannot_be_sent_back_as_the_hosts(private_key: PrivateKey) -> None:
    """A host without the data that echoes what it gets proves nothing."""
    guest = REAL.guest(JOB, make_tables(JOB).guest, private_key)
    (challenge,) = guest.start()
    assert isinstance(challenge.message, IdChallenge)
    host = REAL.host(JOB, make_tables(JOB).host, private_key)
    (proof,) = host.handle(Role.GUEST, challenge.message)
    assert isinstance(proof.message, IdProof)
    confirmation = next(iter(guest.handle(Role.HOST, proof.message))).message
    assert isinstance(confirmation, IdConfirmation)
    with pytest.raises(DataError):
        list(guest.handle(Role.HOST, replace(proof.message, digest=confirmation.digest)))


def test_a_party_may_repeat_its_number_of_columns_but_not_change_it(private_key: PrivateKey) -> None:
    """Otherwise a host could try one number after the other, until the guest's refusal shows how many it allows."""
    guest = REAL.guest(JOB, make_tables(JOB).guest, private_key)
    (challenge,) = guest.start()
    host = REAL.host(JOB, make_tables(JOB).host, private_key)
    (proof,) = host.handle(Role.GUEST, challenge.message)
    assert isinstance(challenge.message, IdChallenge)
    assert isinstance(proof.message, IdProof)
    for _ in range(2):
        assert list(guest.handle(Role.HOST, proof.message))
    with pytest.raises(ProtocolError, match="told the guest 3 of training columns, and then 4"):
        list(guest.handle(Role.HOST, replace(proof.message, n_columns=4)))
    with pytest.raises(ProtocolError, match="told the host 3 of training columns, and then 7"):
        list(host.handle(Role.GUEST, replace(challenge.message, n_columns=7)))


def test_an_unrequested_confirmation_is_refused(private_key: PrivateKey) -> None:
    host = REAL.host(JOB, make_tables(JOB).host, private_key)
    with pytest.raises(ProtocolError, match="before"):
        list(host.handle(Role.GUEST, IdConfirmation(bytes(32))))


# --- who may say what


@pytest.mark.parametrize(
    ("to", "sender", "message"),
    [
        (Role.HOST, Role.GUEST, Ready(1, 1)),
        (Role.HOST, Role.GUEST, BeginRound(RoundKey(1, 1), np.zeros(3), Batch(1), gradient=True)),
        (Role.HOST, Role.COORDINATOR, IdChallenge(bytes(32), 120, 3)),
        (Role.HOST, Role.COORDINATOR, VectorPiece(RoundKey(1, 1), Kind.RESIDUAL, 0, 1, some_ciphertexts())),
        (Role.GUEST, Role.COORDINATOR, HoldoutScores(RoundKey(1, 1), 0, 1, np.zeros(1))),
        (Role.GUEST, Role.COORDINATOR, VectorPiece(RoundKey(1, 1), Kind.SCORES, 0, 1, some_ciphertexts())),
        (Role.COORDINATOR, Role.HOST, IdChallenge(bytes(32), 120, 3)),
        (Role.COORDINATOR, Role.COORDINATOR, Ready(1, 1)),
    ],
)
def test_a_message_from_the_wrong_role_is_refused(
    to: Role, sender: Role, message: Message, private_key: PrivateKey
) -> None:
    machine = make_machines(JOB, make_tables(JOB), private_key)[to]
    with pytest.raises(ProtocolError, match=f"the {to} does not take a {type(message).__name__} from the {sender}"):
        list(machine.handle(sender, message))


def test_different_numbers_of_training_rows_are_refused(private_key: PrivateKey) -> None:
    machine = make_machines(JOB, make_tables(JOB), private_key)[Role.COORDINATOR]
    list(machine.handle(Role.HOST, Ready(96, 3)))
    with pytest.raises(ProtocolError, match="96 rows and the guest on 95"):
        list(machine.handle(Role.GUEST, Ready(95, 3)))


def test_a_party_cannot_finish_before_the_training(private_key: PrivateKey) -> None:
    machine = make_machines(JOB, make_tables(JOB), private_key)[Role.COORDINATOR]
    with pytest.raises(ProtocolError, match="finished before"):
        list(machine.handle(Role.HOST, Finished()))


# --- the place in the rounds


@pytest.mark.parametrize(
    "change",
    [
        lambda begin: replace(begin, key=RoundKey(begin.key.round + 1, 1)),
        lambda begin: replace(begin, step=begin.step[:-1]),
    ],
)
def test_a_step_for_another_round_or_of_another_length_ends_the_job(
    change: Callable[[Any], Message], private_key: PrivateKey
) -> None:
    outcome = train(JOB, make_tables(JOB), private_key, tamper=replacing(BeginRound, change))
    assert outcome.ended.loss is None
    assert "was sent a step of" in outcome.ended.reason


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda piece: replace(piece, total=piece.total + 1), "but those from 0 of"),
        (lambda piece: replace(piece, offset=piece.offset + 1), "but those from 0 of"),
    ],
)
def test_a_vector_of_another_size_or_with_a_gap_ends_the_job(
    change: Callable[[Any], Message], said: str, private_key: PrivateKey
) -> None:
    outcome = train(JOB, make_tables(JOB), private_key, tamper=replacing(VectorPiece, change, Kind.SCORES))
    assert outcome.ended.loss is None
    assert said in outcome.ended.reason


LONGEST = round_scale(JOB, 96, 96).layout.n_groups(96)
"""Ciphertexts of the longest vector of scores, that of all training rows."""


def early_piece(round_number: int, count: int, key: PrivateKey, offset: int = 0) -> VectorPiece:
    ciphertexts = Ciphertexts.of([key.public_key.n + 1] * count, key.public_key.ciphertext_bytes)
    return VectorPiece(RoundKey(round_number, 1), Kind.SCORES, offset, LONGEST, ciphertexts)


def test_pieces_kept_for_a_later_round_are_bounded(private_key: PrivateKey) -> None:
    """One vector of the newest round, the most an honest host has under way, whatever it claims."""
    guest = REAL.guest(JOB, make_tables(JOB).guest, private_key)
    most = LONGEST
    for round_number in (1, 5, 3, 6, 2):
        piece = early_piece(round_number, most, private_key)
        assert list(guest.handle(Role.HOST, piece)) == []
        assert list(guest.handle(Role.HOST, piece)) == []  # sent again
    with pytest.raises(ProtocolError, match="more ciphertexts of scores for round 6 than a round has"):
        list(guest.handle(Role.HOST, early_piece(6, 1, private_key, offset=most)))


@pytest.mark.parametrize("kind", [Kind.RESIDUAL, Kind.TOTAL_CHANGE])
def test_the_host_takes_no_answer_before_it_has_asked(kind: Kind, private_key: PrivateKey) -> None:
    """Every vector of the guest is an answer to one of the host's, so the host need not keep any."""
    host = proved_host(JOB, private_key)
    with pytest.raises(ProtocolError, match="before it was asked for them"):
        list(host.handle(Role.GUEST, replace(early_piece(1, 1, private_key), kind=kind)))


def proved_host(job: JobConfig, private_key: PrivateKey) -> HostMachine:
    data = make_tables(job).host
    host = REAL.host(job, data, private_key)
    prove_ids(host, data)
    return host


def begin(**changes: Any) -> BeginRound:
    """A first round that the host takes: it has three columns."""
    return replace(BeginRound(RoundKey(1, 1), np.zeros(3), Batch(1), gradient=True), **changes)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"key": RoundKey(9, 1)}, "this job has at most 8 rounds, and at most 5 attempts at each"),
        ({"key": RoundKey(2**32 - 1, 1)}, "at most 8 rounds"),
        ({"key": RoundKey(1, 6)}, "at most 5 attempts at each"),
        ({"batch": Batch(3)}, "batch 1 of epoch 3: this job has 2 epochs of 3 batches"),
        ({"batch": Batch(1, 3)}, "batch 4 of epoch 1"),
        ({"batch": Batch(0, 1)}, "batch 2 of epoch 0"),
        ({"direction": np.zeros(2)}, "a direction of 2 numbers: the host has 3 columns"),
        ({"direction": np.zeros(3), "curvature_draw": 1}, "draw 1 of a curvature batch"),
    ],
)
def test_a_round_beyond_the_job_is_refused(change: dict[str, Any], said: str, private_key: PrivateKey) -> None:
    host = proved_host(JOB, private_key)
    with pytest.raises(ProtocolError, match=said):
        list(host.handle(Role.COORDINATOR, begin(**change)))


def test_the_last_attempt_of_a_round_is_taken_and_none_after_it(private_key: PrivateKey) -> None:
    host = proved_host(JOB, private_key)
    for attempt in range(1, 6):
        assert next(iter(host.handle(Role.COORDINATOR, begin(key=RoundKey(1, attempt)))))
    with pytest.raises(ProtocolError, match="attempt 6"):
        list(host.handle(Role.COORDINATOR, begin(key=RoundKey(1, 6))))


def test_curvature_is_refused_in_a_job_that_needs_none(private_key: PrivateKey) -> None:
    job = JOB.model_copy(update={"algorithm": Sgd()})
    host = proved_host(job, private_key)
    with pytest.raises(ProtocolError, match="with curvature, which sgd does not use"):
        list(host.handle(Role.COORDINATOR, begin(direction=np.zeros(3))))


def test_a_draw_is_required_if_the_job_has_a_curvature_batch(private_key: PrivateKey) -> None:
    job = JOB.model_copy(update={"algorithm": Sqn(interval=2, curvature_batch=40)})
    for draw in (0, 5):
        host = proved_host(job, private_key)
        with pytest.raises(ProtocolError, match=f"draw {draw} of a curvature batch"):
            list(host.handle(Role.COORDINATOR, begin(direction=np.zeros(3), curvature_draw=draw)))


@pytest.mark.parametrize(
    "change",
    [{"key": RoundKey(9, 1)}, {"key": RoundKey(2**32 - 1, 1)}, {"key": RoundKey(1, 6)}, {"total": LONGEST + 1}],
)
def test_a_vector_beyond_the_rounds_of_the_job_is_refused(change: dict[str, Any], private_key: PrivateKey) -> None:
    guest = REAL.guest(JOB, make_tables(JOB).guest, private_key)
    piece = early_piece(1, 1, private_key)
    assert list(guest.handle(Role.HOST, piece)) == []
    with pytest.raises(ProtocolError, match=f"at most {LONGEST} of them, at most 8 rounds, and 5 attempts"):
        list(guest.handle(Role.HOST, replace(piece, **change)))


@pytest.mark.parametrize("key", [RoundKey(1, 2), RoundKey(2, 1), RoundKey(2**32 - 1, 1)])
def test_the_coordinator_refuses_messages_for_a_round_that_it_has_not_begun(
    key: RoundKey, private_key: PrivateKey
) -> None:
    for message in (OutOfRange(key), VectorPiece(key, Kind.GRADIENT, 0, 3, some_ciphertexts(1))):
        machine = make_machines(JOB, make_tables(JOB), private_key)[Role.COORDINATOR]
        list(machine.handle(Role.HOST, Ready(96, 3)))
        with pytest.raises(ProtocolError, match=f"the host sent a message for round {key.round}.*not begun"):
            list(machine.handle(Role.HOST, message))
        machine = make_machines(JOB, make_tables(JOB), private_key)[Role.COORDINATOR]
        for party in (Role.HOST, Role.GUEST):
            list(machine.handle(party, Ready(96, 3)))
        with pytest.raises(ProtocolError, match="not begun"):
            list(machine.handle(Role.HOST, message))


def test_fewer_rows_than_a_batch_or_folds_are_refused_at_the_coordinator(private_key: PrivateKey) -> None:
    folds = JobConfig(name="folds", dataset="made", protocol="shares", folds=20)
    for job, n_rows, least in ((JOB, 29, 30), (folds, 19, 20)):
        machine = make_machines(job, make_tables(job), private_key)[Role.COORDINATOR]
        list(machine.handle(Role.HOST, Ready(n_rows, 3)))
        with pytest.raises(ProtocolError, match=f"{n_rows} rows, but the job's batches or folds need {least}"):
            list(machine.handle(Role.GUEST, Ready(n_rows, 3)))


def test_slots_that_have_no_room_in_some_round_are_refused_before_the_first(private_key: PrivateKey) -> None:
    """Eight slots fit batches of 64 out of 137 rows, but not all rows, which the last evaluation asks for."""
    job = JobConfig(
        name="slots", dataset="made", algorithm=Sgd(), batch=64, slots=8, key_bits=1024, holdout=0.0, epochs=1
    )
    with pytest.raises(ConfigError, match="room for 7 slots"):
        make_machines(job, make_tables(job, n_rows=137), private_key)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda piece: replace(piece, total=piece.total + 1), "but 3 are expected"),
        (lambda piece: replace(piece, offset=1), "out of order"),
        (lambda piece: replace(piece, kind=Kind.LOSS, total=1), "but 0 are expected"),
    ],
)
def test_the_coordinator_refuses_a_gradient_of_the_wrong_size(
    change: Callable[[Any], Message], said: str, private_key: PrivateKey
) -> None:
    job = JOB.model_copy(update={"algorithm": Sgd()})

    def tamper(sender: Role, envelope: Envelope) -> list[Envelope]:
        message = envelope.message
        if isinstance(message, VectorPiece) and message.kind is Kind.GRADIENT and sender is Role.HOST:
            return [Envelope(envelope.to, change(message))]
        return [envelope]

    with pytest.raises(ProtocolError, match=said):
        train(job, make_tables(job), private_key, tamper=tamper)


def test_holdout_scores_of_other_rows_end_the_job(private_key: PrivateKey) -> None:
    def longer(message: HoldoutScores) -> HoldoutScores:
        return replace(message, total=message.total + 1)

    outcome = train(JOB, make_tables(JOB), private_key, tamper=replacing(HoldoutScores, longer))
    assert "hold-out scores for other rows" in outcome.ended.reason


def test_columns_that_are_not_scaled_are_refused(private_key: PrivateKey) -> None:
    tables = make_tables(JOB)
    block = replace(tables.host.block, columns=np.asarray(tables.host.block.columns) * 1.001)
    with pytest.raises(DataError, match="mean square exceeds 1"):
        REAL.host(JOB, replace(tables.host, block=block), private_key)


def test_a_guest_without_labels_is_refused(private_key: PrivateKey) -> None:
    with pytest.raises(DataError, match="no label"):
        REAL.guest(JOB, make_tables(JOB).host, private_key)


@pytest.mark.parametrize(
    "change",
    [
        {"batch": Batch(1, 1)},
        {"gradient": False},
        {"direction": np.full(3, 0.1)},
    ],
)
def test_another_attempt_at_a_round_must_ask_for_the_same(change: dict[str, Any], private_key: PrivateKey) -> None:
    """Or each attempt would show the coordinator one more sum."""
    host = proved_host(JOB, private_key)
    begin = BeginRound(RoundKey(1, 1), np.zeros(3), Batch(1, 0), gradient=True)
    list(host.handle(Role.COORDINATOR, begin))
    list(host.handle(Role.COORDINATOR, replace(begin, key=RoundKey(1, 2))))
    with pytest.raises(ProtocolError, match="but its request differs"):
        list(host.handle(Role.COORDINATOR, replace(begin, key=RoundKey(1, 3), **change)))


@pytest.mark.parametrize(("to", "kind"), [(Role.GUEST, Kind.SCORES), (Role.COORDINATOR, Kind.GRADIENT)])
def test_the_ciphertexts_of_a_sender_in_a_whole_job_are_bounded(to: Role, kind: Kind, private_key: PrivateKey) -> None:
    """Also what is ignored because it came before: else it could go on for ever."""
    sent: list[VectorPiece] = []

    def again_and_again(sender: Role, envelope: Envelope) -> list[Envelope]:
        message = envelope.message
        if not isinstance(message, VectorPiece) or message.kind is not kind or sent:
            return [envelope]
        sent.append(message)
        return [envelope] * 20_000

    job = JOB.model_copy(update={"epochs": 1, "algorithm": Sgd()})
    said = "sent more than the [0-9]+ ciphertexts that this job can have"
    if to is Role.COORDINATOR:
        with pytest.raises(ProtocolError, match=said):
            train(job, make_tables(job), private_key, tamper=again_and_again)
    else:
        assert re.search(said, train(job, make_tables(job), private_key, tamper=again_and_again).ended.reason)
