"""What one party could take from the other's ciphertexts, from the recorded traffic of a real training."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import gmpy2
import numpy as np
import pytest
from gmpy2 import mpz

from tests.attacks.wire import Recording, record_training
from tests.support.three_servers import DATASET
from trilateral.common.base.arrays import FloatVector
from trilateral.common.base.roles import Role
from trilateral.common.config.job import JobConfig, Sgd, Sqn
from trilateral.common.paillier.cipher import EncryptedVector
from trilateral.common.paillier.ciphertexts import Ciphertexts
from trilateral.common.paillier.factory import make_cipher
from trilateral.common.paillier.keys import PrivateKey
from trilateral.common.paillier.randomness import RandomnessPool, Residues
from trilateral.common.pb.v1.jobs_pb2 import JOB_STATE_FINISHED
from trilateral.common.protocol.messages import BeginRound, Envelope, Kind, RoundKey, VectorPiece
from trilateral.common.protocol.scales import round_scale
from trilateral.coordinator.machine import CoordinatorMachine

JOB = JobConfig(
    name="attacked",
    dataset=DATASET,
    algorithm=Sqn(interval=2),
    batch=60,
    epochs=3,
    key_bits=512,
    holdout=0.0,
    seed=2,
    tolerance=0.0,
)


def quotients_in_clear(before: Sequence[mpz], after: Sequence[mpz], n: mpz) -> list[mpz] | None:
    """The signed m of each after/before = (1 + n)^m = 1 + m n modulo n^2; None if any quotient is not of that form."""
    found = []
    for old, new in zip(before, after, strict=True):
        quotient = new * gmpy2.invert(old, n * n) % (n * n)
        if (quotient - 1) % n:
            return None
        m = (quotient - 1) // n
        found.append(m - n if 2 * m > n else m)
    return found


def leave_as_it_is(self: Any, vector: EncryptedVector, plaintexts: Sequence[mpz] | None = None) -> Ciphertexts:
    """In the place of `rerandomise`."""
    left: Ciphertexts = self._leave(vector, plaintexts)
    return left


# --- the host divides what comes back by what it sent


@pytest.mark.parametrize("protected", [True, False])
async def test_the_host_cannot_divide_out_what_the_guest_added(
    protected: bool, private_key: PrivateKey, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if not protected:
        monkeypatch.setattr(type(make_cipher("packed", private_key.public_key)), "rerandomise", leave_as_it_is)
    recorded = await record_training(JOB, tmp_path, monkeypatch, private_key)
    n = private_key.public_key.n
    for sent, returned, number in ((Kind.SCORES, Kind.RESIDUAL, 1), (Kind.SCORE_CHANGE, Kind.TOTAL_CHANGE, 4)):
        before, after = recorded.vector(sent, number), recorded.vector(returned, number)
        assert before
        assert (quotients_in_clear(before, after, n) is None) is protected


async def test_without_protection_that_quotient_is_the_labels(
    private_key: PrivateKey, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """In round 1, where w = 0, the guest adds -2y."""
    monkeypatch.setattr(type(make_cipher("packed", private_key.public_key)), "rerandomise", leave_as_it_is)
    job = JOB.model_copy(update={"slots": 1, "batch": "all", "algorithm": Sgd(), "epochs": 1})
    recorded = await record_training(job, tmp_path, monkeypatch, private_key)
    n = private_key.public_key.n
    stolen = quotients_in_clear(recorded.vector(Kind.SCORES), recorded.vector(Kind.RESIDUAL), n)
    assert stolen is not None
    np.testing.assert_array_equal([-1 if m > 0 else 1 for m in stolen], recorded.truth.joined.labels)


# --- the guest compares the host's ciphertexts of different rounds and attempts


def take_again(self: RandomnessPool, count: int) -> Residues:
    """The naive build: the first residues are kept and used for every vector."""
    while self.prepare(count):
        pass
    return self._residues[:count].copy()


def begin_round_two_again(patch: pytest.MonkeyPatch) -> None:
    """The coordinator begins round 2 once more when its first answer has come, as if the others had been late."""
    take = CoordinatorMachine._take_piece

    def impatient(self: CoordinatorMachine, sender: Role, piece: VectorPiece) -> Iterator[Envelope]:
        if self._attempt is not None and self._attempt.key == RoundKey(2, 1):
            yield from self._begin_again(self._attempt)
        else:
            yield from take(self, sender, piece)

    patch.setattr(CoordinatorMachine, "_take_piece", impatient)


@pytest.mark.parametrize("protected", [True, False])
async def test_no_two_ciphertexts_are_equal_or_differ_by_a_readable_factor(
    protected: bool, private_key: PrivateKey, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Equal ones tell that a value is the same; those with the same randomness, by how much it differs."""
    if not protected:
        monkeypatch.setattr(RandomnessPool, "take", take_again)
    begin_round_two_again(monkeypatch)
    job = JOB.model_copy(update={"batch": "all", "algorithm": Sgd(), "epochs": 4, "slots": 1})
    recorded = await record_training(job, tmp_path, monkeypatch, private_key)
    assert recorded.status.state == JOB_STATE_FINISHED
    first, again, later = (recorded.vector(Kind.SCORES, *key) for key in ((2, 1), (2, 2), (3, 1)))
    assert len(first) == len(again) == len(later) == 120
    n = private_key.public_key.n

    everything = [ciphertext for piece in recorded.pieces() for ciphertext in piece.ciphertexts]
    assert (len(set(everything)) == len(everything)) is protected
    assert (first != again) is protected
    assert (quotients_in_clear(first, again, n) is None) is protected
    differences = quotients_in_clear(again, later, n)
    assert (differences is None) is protected
    if differences is not None:
        # The guest knows by how much each of the host's scores has changed, which is -X_A times the step.
        step = host_step(recorded, number=3)
        change = -np.asarray(recorded.truth.host.block.columns) @ step
        fraction_bits = round_scale(job, 120, 120).value_fraction_bits
        np.testing.assert_allclose([float(m) / 2.0**fraction_bits for m in differences], change, atol=1e-4)


def host_step(recorded: Recording, number: int) -> FloatVector:
    steps = [
        message.step
        for message in recorded.messages("/BeginRound")
        if isinstance(message, BeginRound) and message.key == RoundKey(number, 1) and len(message.step) == 4
    ]
    return np.asarray(steps[0])
