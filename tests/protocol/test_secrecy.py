"""The rules that keep data secret, each as an attack that fails, and wins where its protection is taken out."""

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import gmpy2
import numpy as np
import pytest
from gmpy2 import mpz

from common.config.job import JobConfig, Sgd, Sqn
from common.errors import BadCiphertextError, BadKeyError, TrilateralError
from common.paillier import keys
from common.paillier.cipher import PackedCipher
from common.paillier.keys import PrivateKey, check_public_key
from common.paillier.packing import SlotLayout
from common.protocol import party
from common.protocol.messages import Envelope, Kind, RoundKey, VectorPiece
from common.protocol.scales import RoundScale, round_scale
from common.roles import Role
from common.rpc.codec import JobKey, encode_piece, width_of
from tests.support.three_machines import Outcome, Tables, make_tables, train

JOB = JobConfig(
    name="secrecy", dataset="made", algorithm=Sqn(interval=2), batch=60, epochs=3, key_bits=1024, holdout=0.0, seed=2
)


def vector(outcome: Outcome, kind: Kind, number: int = 1, sender: Role | None = None) -> list[mpz]:
    """One encrypted vector of a round, as somebody who sees the traffic has it."""
    return [
        ciphertext
        for source, _, message in outcome.traffic
        if isinstance(message, VectorPiece) and message.kind is kind and message.key == RoundKey(number, 1)
        if sender in (None, source)
        for ciphertext in message.ciphertexts
    ]


def leave_as_it_is(self: PackedCipher, ciphertexts: Sequence[mpz]) -> list[mpz]:
    return list(ciphertexts)


# --- rule 1: what goes back to the host cannot be divided by what came from it


def quotients_in_clear(before: list[mpz], after: list[mpz], n: mpz) -> list[mpz] | None:
    """m of each after/before = (1 + n)^m = 1 + m n modulo n^2; None if any quotient is not of that form."""
    found = []
    for old, new in zip(before, after, strict=True):
        quotient = new * gmpy2.invert(old, n * n) % (n * n)
        if (quotient - 1) % n:
            return None
        found.append((quotient - 1) // n)
    return found


@pytest.mark.parametrize(
    ("sent", "returned", "number"), [("SCORES", "RESIDUAL", 1), ("SCORE_CHANGE", "TOTAL_CHANGE", 4)]
)
@pytest.mark.parametrize("protected", [True, False])
def test_the_host_cannot_divide_out_what_the_guest_added(
    sent: str, returned: str, number: int, protected: bool, private_key: PrivateKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not protected:
        monkeypatch.setattr(PackedCipher, "rerandomise", leave_as_it_is)
    outcome = train(JOB, make_tables(JOB), private_key)
    before, after = vector(outcome, Kind[sent], number), vector(outcome, Kind[returned], number)
    assert before
    in_clear = quotients_in_clear(before, after, private_key.public_key.n)
    assert (in_clear is None) is protected


def test_without_protection_that_quotient_is_the_labels(
    private_key: PrivateKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In round 1, where w = 0, the guest adds -2y."""
    monkeypatch.setattr(PackedCipher, "rerandomise", leave_as_it_is)
    job = JOB.model_copy(update={"slots": 1, "batch": "all", "algorithm": Sgd()})
    tables = make_tables(job)
    outcome = train(job, tables, private_key)
    n = private_key.public_key.n
    stolen = quotients_in_clear(vector(outcome, Kind.SCORES), vector(outcome, Kind.RESIDUAL), n)
    assert stolen is not None
    np.testing.assert_array_equal([1 if 2 * m > n else -1 for m in stolen], tables.joined.labels)


# --- rule 2: the coordinator reads the middle slot, and nothing else


def side_slots(outcome: Outcome, key: PrivateKey, scale: RoundScale, number: int) -> tuple[list[int], list[int]]:
    """What the private key shows of the gradient's ciphertexts below and above the middle slot."""
    layout = scale.layout
    plaintexts = [key.decrypt(c) % key.public_key.n for c in vector(outcome, Kind.GRADIENT, number)]
    shift = layout.slot_bits * (layout.slots - 1)
    return (
        [int(plaintext % (mpz(1) << shift)) for plaintext in plaintexts],
        [int(plaintext >> shift + layout.slot_bits) for plaintext in plaintexts],
    )


def chi_square_of_top_bits(values: list[int], bits: int) -> float:
    """Against uniform over sixteen bins; 15 degrees of freedom, 99.99% below 44."""
    counts = np.bincount([value >> (bits - 4) for value in values], minlength=16)
    expected = len(values) / 16
    return float(((counts - expected) ** 2 / expected).sum())


@pytest.mark.parametrize("protected", [True, False])
def test_what_lies_beside_the_middle_slot_is_uniform(
    protected: bool, private_key: PrivateKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not protected:
        monkeypatch.setattr(SlotLayout, "mask", lambda self: mpz(0))
    job = JOB.model_copy(update={"algorithm": Sgd(learning_rate=0.1), "epochs": 40, "tolerance": 0.0})
    outcome = train(job, make_tables(job), private_key)
    scale = round_scale(job, 60, 120)
    below: list[int] = []
    above: list[int] = []
    for report in outcome.reports:
        if not report.evaluation:
            low, high = side_slots(outcome, private_key, scale, report.key.round)
            below += low
            above += high
    side_bits = scale.layout.slot_bits * (scale.layout.slots - 1)
    assert len(below) > 400
    assert (chi_square_of_top_bits(below, side_bits) < 60) is protected
    above_bits = side_bits + 40 if protected else private_key.public_key.bits
    assert (chi_square_of_top_bits(above, above_bits) < 60) is protected


@pytest.mark.parametrize("protected", [True, False])
def test_the_coordinator_cannot_confirm_a_guess_of_a_column(
    protected: bool, private_key: PrivateKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the key and the traffic between the parties, compare the randomness of [g_j] with that of prod [d_i]^x_ij.

    The key gives the random factor of any ciphertext, c (1 + n)^-m. Without fresh randomness the factor of
    the inner product is that product of the factors of [d], so any guess of a column can be tested.
    """
    original = PackedCipher.rerandomise
    if not protected:

        def only_for_the_peer(self: PackedCipher, ciphertexts: Sequence[mpz]) -> list[mpz]:
            is_vector = len(ciphertexts) == 120
            return original(self, ciphertexts) if is_vector else list(ciphertexts)

        monkeypatch.setattr(PackedCipher, "rerandomise", only_for_the_peer)
    job = JOB.model_copy(update={"slots": 1, "batch": "all", "algorithm": Sgd(), "epochs": 1})
    tables = make_tables(job)
    outcome = train(job, tables, private_key)
    n, n_squared = private_key.public_key.n, private_key.public_key.n_squared

    def factor(ciphertext: mpz) -> mpz:
        return ciphertext * (1 - private_key.decrypt(ciphertext) * n) % n_squared

    guess = round_scale(job, 120, 120).encode_columns(tables.host.block.columns)[:, 0].tolist()
    expected = mpz(1)
    for ciphertext, x in zip(vector(outcome, Kind.RESIDUAL), guess, strict=True):
        expected = expected * gmpy2.powmod(factor(ciphertext), x, n_squared) % n_squared
    seen = factor(vector(outcome, Kind.GRADIENT, sender=Role.HOST)[0])
    assert (seen != expected) is protected


# --- rule 3: nothing that depends on private values shows in sizes, scales or counts


def scaled(tables: Tables, factor: float) -> Tables:
    """Other data of the same sizes: smaller columns, other labels."""

    def small(data: Any, labels: Any) -> Any:
        return replace(data, block=replace(data.block, columns=data.block.columns * factor, labels=labels))

    return Tables(small(tables.host, None), small(tables.guest, -tables.joined.labels))


@pytest.mark.parametrize("protected", [True, False])
def test_sizes_and_counts_do_not_depend_on_the_data(
    protected: bool, private_key: PrivateKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = JOB.model_copy(update={"tolerance": 0.0})
    if not protected:
        # A scale that follows the data, as a per-value exponent does.
        def following(self: party.PartyMachine, n_samples: int) -> RoundScale:
            fits = round_scale(job, n_samples, self._n_train)
            spare = max(0, 6 - int(np.abs(self._columns).max() * 8).bit_length())
            return RoundScale(SlotLayout(fits.layout.slot_bits, max(1, fits.layout.slots - spare)), 20, 20, n_samples)

        monkeypatch.setattr(party.PartyMachine, "_scale", following)
    tables = make_tables(job)
    assert (shape_of_traffic(job, tables, private_key) == shape_of_traffic(job, scaled(tables, 0.02), private_key)) is (
        protected
    )


def shape_of_traffic(job: JobConfig, tables: Tables, key: PrivateKey) -> list[tuple[Any, ...]]:
    """What somebody who can open nothing sees: who says what to whom, how much, and where in the vector."""
    seen: list[tuple[Any, ...]] = []

    run = JobKey.draw(job.name)

    def record(sender: Role, envelope: Envelope) -> list[Envelope]:
        piece = envelope.message
        if isinstance(piece, VectorPiece):
            size = sum(request.ByteSize() for request in encode_piece(run, piece, width_of(job)))
            seen.append((sender, envelope.to, piece.kind, piece.key, piece.offset, piece.total, size))
        return [envelope]

    with contextlib.suppress(TrilateralError):  # a scale that differs between the parties breaks the round
        train(job, tables, key, tamper=record)
    return seen


# --- rule 4: keys and ciphertexts are checked before they are used


@pytest.mark.parametrize("protected", [True, False])
@pytest.mark.parametrize("kind", list(Kind))
@pytest.mark.parametrize("bad", ["zero", "too large", "a multiple of p"])
def test_a_bad_ciphertext_ends_the_job(
    kind: Kind, bad: str, protected: bool, private_key: PrivateKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not protected:
        for module in ("common.protocol.party", "coordinator.machine"):
            monkeypatch.setattr(f"{module}.check_ciphertexts", lambda public_key, ciphertexts: None)
    n = private_key.public_key.n
    value = {"zero": mpz(0), "too large": n * n, "a multiple of p": private_key.p}[bad]

    def tamper(sender: Role, envelope: Envelope) -> list[Envelope]:
        message = envelope.message
        if isinstance(message, VectorPiece) and message.kind is kind:
            ciphertexts = [value, *message.ciphertexts[1:]]
            message = VectorPiece(message.key, message.kind, message.offset, message.total, ciphertexts)
        return [Envelope(envelope.to, message)]

    job = JOB.model_copy(update={"algorithm": Sqn(interval=1), "epochs": 2})
    refused = False
    try:
        outcome = train(job, make_tables(job), private_key, tamper=tamper)
        refused = "ciphertext" in outcome.ended.reason
    except BadCiphertextError:
        refused = True  # at the coordinator
    except (ZeroDivisionError, ValueError):
        pass  # arithmetic on nonsense: the job dies, but nobody had refused it
    assert refused is protected


def test_a_count_other_than_announced_ends_the_job(private_key: PrivateKey) -> None:
    def tamper(sender: Role, envelope: Envelope) -> list[Envelope]:
        message = envelope.message
        if isinstance(message, VectorPiece) and message.kind is Kind.SCORES:
            more = [*message.ciphertexts, message.ciphertexts[0]]
            message = VectorPiece(message.key, message.kind, message.offset, message.total, more)
        return [Envelope(envelope.to, message)]

    outcome = train(JOB, make_tables(JOB), private_key, tamper=tamper)
    assert outcome.ended.loss is None
    assert "more ciphertexts of scores than announced" in outcome.ended.reason


def test_a_short_key_is_refused_and_would_be_opened_without_the_check() -> None:
    """A modulus that anyone factors: the check is what stands between it and the data."""
    p, q = mpz(2**61 - 1), mpz(2**89 - 1)
    with pytest.raises(BadKeyError, match="2048"):
        check_public_key(p * q, 2048)
    weak = keys.PublicKey(p * q)
    (ciphertext,) = PackedCipher(weak).encrypt([mpz(1234)])
    # The attack: factor n (known factors stand in for a minute of work), and open.
    order = (p - 1) * (q - 1)
    opened = (gmpy2.powmod(ciphertext, order, weak.n_squared) - 1) // weak.n * gmpy2.invert(order, weak.n) % weak.n
    assert opened == 1234
