"""What an observer without a key could learn from exponents, scales, sizes and counts."""

import contextlib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from phe import paillier

from tests.support.three_machines import Tables, make_tables, train
from trilateral.common.base.errors import TrilateralError
from trilateral.common.base.roles import Role
from trilateral.common.config.job import JobConfig, Sqn
from trilateral.common.paillier.keys import PrivateKey
from trilateral.common.paillier.packing import SlotLayout
from trilateral.common.protocol.arithmetic import PaillierArithmetic
from trilateral.common.protocol.messages import Envelope, VectorPiece
from trilateral.common.protocol.scales import RoundScale, round_scale
from trilateral.common.rpc.codec import JobKey, encode_piece

JOB = JobConfig(
    name="attacked", dataset="made", algorithm=Sqn(interval=2), batch=60, epochs=3, key_bits=512, holdout=0.0, seed=2
)


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
        def following(self: PaillierArithmetic, n_samples: int) -> RoundScale:
            fits = round_scale(job, n_samples, self._n_train)
            spare = max(0, 6 - int(np.abs(np.asarray(self._columns)).max() * 8).bit_length())
            return RoundScale(SlotLayout(fits.layout.slot_bits, max(1, fits.layout.slots - spare)), 20, 20, n_samples)

        monkeypatch.setattr(PaillierArithmetic, "_scale", following)
    tables = make_tables(job)
    assert (shape_of_traffic(job, tables, private_key) == shape_of_traffic(job, scaled(tables, 0.02), private_key)) is (
        protected
    )


def shape_of_traffic(job: JobConfig, tables: Tables, key: PrivateKey) -> list[tuple[Any, ...]]:
    """Return what an observer without a key sees: sender, receiver, kind, size, and position in the vector."""
    seen: list[tuple[Any, ...]] = []

    run = JobKey.draw(job.name)

    def record(sender: Role, envelope: Envelope) -> list[Envelope]:
        piece = envelope.message
        if isinstance(piece, VectorPiece):
            size = sum(request.ByteSize() for request in encode_piece(run, piece))
            seen.append((sender, envelope.to, piece.kind, piece.key, piece.offset, piece.total, size))
        return [envelope]

    with contextlib.suppress(TrilateralError):  # a scale that differs between the parties breaks the round
        train(job, tables, key, tamper=record)
    return seen


def test_the_exponents_of_the_naive_protocol_tell_sizes(private_key: PrivateKey) -> None:
    """As phe codes a float, an exponent travels beside each ciphertext: the power of 16 of a score's last place.

    We send integers at a scale of the round, see above: all that travels of a vector is `shape_of_traffic`.
    """
    scores = make_tables(JOB).host.block.columns @ np.array([1.0, -0.5, 0.25])
    public_key = paillier.PaillierPublicKey(int(private_key.public_key.n))
    exponents = np.array([public_key.encrypt(float(score)).exponent for score in scores])
    places = np.floor(np.log2(np.abs(scores)) / 4)
    assert len(set(exponents)) > 1
    # An observer of the exponent knows the size of the score within one power of 16.
    assert np.abs(exponents - exponents.mean() - (places - places.mean())).max() < 1.5
