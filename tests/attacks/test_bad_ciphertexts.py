"""Numbers that are not ciphertexts are refused before they are used, in place of any vector."""

from dataclasses import replace

import pytest
from gmpy2 import mpz

from tests.support.three_machines import make_tables, train
from trilateral.common.base.errors import BadCiphertextError
from trilateral.common.base.roles import Role
from trilateral.common.config.job import JobConfig, Sqn
from trilateral.common.paillier.ciphertexts import Ciphertexts
from trilateral.common.paillier.keys import PrivateKey
from trilateral.common.protocol.messages import ELEMENT_KINDS, Envelope, Kind, VectorPiece

JOB = JobConfig(
    name="attacked", dataset="made", algorithm=Sqn(interval=2), batch=60, epochs=3, key_bits=512, holdout=0.0, seed=2
)


@pytest.mark.parametrize("protected", [True, False])
@pytest.mark.parametrize("kind", sorted(set(Kind) - ELEMENT_KINDS))
@pytest.mark.parametrize("bad", ["zero", "too large", "a multiple of p"])
def test_a_bad_ciphertext_ends_the_job(
    kind: Kind, bad: str, protected: bool, private_key: PrivateKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not protected:
        for check in (
            "common.paillier.packed.check_ciphertexts",
            "common.paillier.native.cipher.check_range",
            "common.paillier.native.cipher.check_coprime",
            "coordinator.paillier.computation.check_ciphertexts",
        ):
            monkeypatch.setattr(f"trilateral.{check}", lambda public_key, ciphertexts: None)
    n = private_key.public_key.n
    value = {"zero": mpz(0), "too large": n * n, "a multiple of p": private_key.p}[bad]

    def tamper(sender: Role, envelope: Envelope) -> list[Envelope]:
        message = envelope.message
        if isinstance(message, VectorPiece) and message.kind is kind:
            ciphertexts = Ciphertexts.of([value, *message.ciphertexts[1:]], message.ciphertexts.width)
            message = replace(message, ciphertexts=ciphertexts)
        return [Envelope(envelope.to, message)]

    job = JOB.model_copy(update={"algorithm": Sqn(interval=1), "epochs": 2})
    refused = False
    try:
        outcome = train(job, make_tables(job), private_key, tamper=tamper)
        refused = "ciphertext" in outcome.ended.reason
    except BadCiphertextError:
        refused = True  # at the coordinator
    except (ZeroDivisionError, ValueError):
        pass  # Arithmetic on invalid numbers ends the job, but no check had refused them.
    assert refused is protected


def test_a_count_that_differs_from_the_announced_one_ends_the_job(private_key: PrivateKey) -> None:
    def tamper(sender: Role, envelope: Envelope) -> list[Envelope]:
        message = envelope.message
        if isinstance(message, VectorPiece) and message.kind is Kind.SCORES:
            more = [*message.ciphertexts, message.ciphertexts[0]]
            message = replace(message, ciphertexts=Ciphertexts.of(more, message.ciphertexts.width))
        return [Envelope(envelope.to, message)]

    outcome = train(JOB, make_tables(JOB), private_key, tamper=tamper)
    assert outcome.ended.loss is None
    assert "more ciphertexts of scores than announced" in outcome.ended.reason
