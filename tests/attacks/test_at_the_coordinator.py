"""What the coordinator could read besides the sums that it is meant to read, from its key and a recorded training."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gmpy2
import numpy as np
import pytest
from gmpy2 import mpz

from tests.attacks.wire import record_training
from tests.support.three_servers import DATASET
from trilateral.common.base.roles import Role
from trilateral.common.config.job import JobConfig, Sgd
from trilateral.common.paillier.cipher import EncryptedVector
from trilateral.common.paillier.ciphertexts import Ciphertexts
from trilateral.common.paillier.factory import make_cipher
from trilateral.common.paillier.fixed_point import encode
from trilateral.common.paillier.keys import PrivateKey
from trilateral.common.paillier.packing import SlotLayout
from trilateral.common.pb.v1.jobs_pb2 import JOB_STATE_FINISHED
from trilateral.common.protocol.messages import Kind
from trilateral.common.protocol.scales import VALUE_BITS, round_scale

JOB = JobConfig(
    name="attacked",
    dataset=DATASET,
    algorithm=Sgd(learning_rate=0.1),
    batch=60,
    epochs=40,
    key_bits=512,
    holdout=0.0,
    tolerance=0.0,
)


def no_mask(self: SlotLayout) -> mpz:
    return mpz(0)


def sides(plaintext: mpz, layout: SlotLayout, n: mpz) -> tuple[int, int]:
    """What lies below and above the middle slot of an opened ciphertext."""
    shift = layout.slot_bits * (layout.slots - 1)
    return int(plaintext % (mpz(1) << shift)), int(plaintext % n >> shift + layout.slot_bits)


def chi_square(values: Sequence[int], bits: int, position: int) -> float:
    """Four bits of each value, `position` bits below its top, against uniform over sixteen bins.

    15 degrees of freedom: above 60 once in three million tries.
    """
    counts = np.bincount([value >> (bits - 4 - position) & 15 for value in values if value < 1 << bits], minlength=16)
    expected = len(values) / 16
    return float(((counts - expected) ** 2 / expected).sum())


@pytest.mark.parametrize("protected", [True, False])
async def test_the_slots_beside_the_middle_one_are_uniform(
    protected: bool, private_key: PrivateKey, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Over 80 rounds, 560 ciphertexts, the top and the bottom four bits of both sides."""
    if not protected:
        monkeypatch.setattr(SlotLayout, "mask", no_mask)
    recorded = await record_training(JOB, tmp_path, monkeypatch, private_key)
    assert recorded.status.state == JOB_STATE_FINISHED
    layout, n = round_scale(JOB, 60, 120).layout, private_key.public_key.n
    assert layout.slots > 1
    gradients = [c for piece in recorded.pieces() if piece.kind is Kind.GRADIENT for c in piece.ciphertexts]
    assert len(gradients) >= 80 * 7
    below, above = zip(*(sides(private_key.decrypt(c), layout, n) for c in gradients), strict=True)
    side_bits = layout.slot_bits * (layout.slots - 1)
    # The top bits without a mask are the product's sign, the same 40 times over. The product itself is there to
    # be read below; its lowest bits look random with a mask or without, which nothing rests on.
    assert (chi_square(below, side_bits, 0) < 60) is protected
    assert (chi_square(above, side_bits + layout.mask_bits, 0) < 60) is protected
    if protected:
        for values, bits in ((below, side_bits), (above, side_bits + layout.mask_bits)):
            assert chi_square(values, bits, bits - 4) < 60
            assert chi_square(values, bits, bits // 2) < 60


@pytest.mark.parametrize("protected", [True, False])
async def test_the_lowest_slot_is_not_a_sum_over_a_few_rows(
    protected: bool, private_key: PrivateKey, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Unmasked, it holds d of the first row of each group times x of the last: in round 1, u_B - 2y times features.

    With a batch of one group that is the product of two single numbers of two rows.
    """
    if not protected:
        monkeypatch.setattr(SlotLayout, "mask", no_mask)
    job = JOB.model_copy(update={"batch": "all", "epochs": 1})
    recorded = await record_training(job, tmp_path, monkeypatch, private_key)
    scale = round_scale(job, 120, 120)
    layout, n = scale.layout, private_key.public_key.n
    read = [
        sides(private_key.decrypt(c), layout, n)[0] & (1 << layout.slot_bits) - 1
        for c in recorded.vector(Kind.GRADIENT, sender=Role.HOST)
    ]
    truth = recorded.truth
    assert truth.start is not None
    x = scale.encode_columns(np.asarray(truth.host.block.columns))
    first = np.arange(0, 120, layout.slots)
    groups = [row for row in first if row + layout.slots <= 120]
    u_guest = np.asarray(truth.guest.block.columns) @ truth.start
    residual = encode(u_guest - 2 * truth.joined.labels, scale.value_fraction_bits, VALUE_BITS)
    expected = [
        sum(int(residual[row]) * int(x[row + layout.slots - 1, j]) for row in groups) % (1 << layout.slot_bits)
        for j in range(x.shape[1])
    ]
    assert (read != expected) is protected


@pytest.mark.parametrize("protected", [True, False])
async def test_the_coordinator_cannot_confirm_a_guess_of_a_column(
    protected: bool, private_key: PrivateKey, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With the key and the traffic between the parties, compare the randomness of [g_j] with that of prod [d_i]^x_ij.

    The key gives the random factor of any ciphertext, c (1 + n)^-m. Without fresh randomness the factor of
    the inner product is that product of the factors of [d], so any guess of a column can be tested.
    """
    cipher = type(make_cipher("packed", private_key.public_key))
    original = cipher.rerandomise
    if not protected:

        def only_for_the_peer(
            self: Any, vector: EncryptedVector, plaintexts: Sequence[mpz] | None = None
        ) -> Ciphertexts:
            is_vector = len(vector) == 120
            left: Ciphertexts = original(self, vector) if is_vector else self._leave(vector, plaintexts)
            return left

        monkeypatch.setattr(cipher, "rerandomise", only_for_the_peer)
    job = JOB.model_copy(update={"slots": 1, "batch": "all", "epochs": 1})
    recorded = await record_training(job, tmp_path, monkeypatch, private_key)
    n, n_squared = private_key.public_key.n, private_key.public_key.n_squared

    def factor(ciphertext: mpz) -> mpz:
        return ciphertext * (1 - private_key.decrypt(ciphertext) * n) % n_squared

    guess = round_scale(job, 120, 120).encode_columns(np.asarray(recorded.truth.host.block.columns))[:, 0].tolist()
    expected = mpz(1)
    for ciphertext, x in zip(recorded.vector(Kind.RESIDUAL), guess, strict=True):
        expected = expected * gmpy2.powmod(factor(ciphertext), x, n_squared) % n_squared
    seen = factor(recorded.vector(Kind.GRADIENT, sender=Role.HOST)[0])
    assert (seen != expected) is protected
