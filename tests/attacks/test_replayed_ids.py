"""A party without the IDs that sends back, or sends again, what it has seen of the proof."""

import hmac
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.attacks.wire import Recording, record_training
from tests.support.three_machines import REAL
from tests.support.three_servers import DATASET
from trilateral.common.base.errors import DataError
from trilateral.common.base.roles import Role
from trilateral.common.config.job import JobConfig
from trilateral.common.paillier.keys import PrivateKey
from trilateral.common.protocol.messages import IdChallenge, IdConfirmation, IdProof, Message, Ready
from trilateral.guest_party.machine import GuestMachine
from trilateral.host_party.machine import HostMachine

JOB = JobConfig(name="attacked", dataset=DATASET, epochs=1, key_bits=512)
Digest = Callable[[bytes, bytes, bytes, Role], bytes]


def use_digest(patch: pytest.MonkeyPatch, digest: Digest) -> None:
    for module in ("trilateral.common.protocol.ids", "trilateral.host_party.machine", "trilateral.guest_party.machine"):
        patch.setattr(f"{module}.id_digest", digest)


def without_role(of_list: bytes, guest_nonce: bytes, host_nonce: bytes, role: Role) -> bytes:
    return hmac.digest(guest_nonce + host_nonce, of_list, "sha256")


def without_nonces(of_list: bytes, guest_nonce: bytes, host_nonce: bytes, role: Role) -> bytes:
    return hmac.digest(role.value.encode(), of_list, "sha256")


def only(recorded: Recording, kind: type[Message]) -> Message:
    (message,) = [message for message in recorded.messages() if isinstance(message, kind)]
    return message


def answers(machine: HostMachine | GuestMachine, sender: Role, message: Message) -> list[Message]:
    return [envelope.message for envelope in machine.handle(sender, message)]


@pytest.mark.parametrize("protected", [True, False])
async def test_the_guest_cannot_send_the_hosts_digest_back(
    protected: bool, private_key: PrivateKey, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its challenge is a recorded one, so that all it says is the recording's, or the host's own words."""
    if not protected:
        use_digest(monkeypatch, without_role)
    recorded = await record_training(JOB, tmp_path, monkeypatch, private_key)
    host = REAL.host(JOB, recorded.truth.host, private_key)
    (proof,) = answers(host, Role.GUEST, only(recorded, IdChallenge))
    assert isinstance(proof, IdProof)
    assert is_accepted(host, Role.GUEST, IdConfirmation(proof.digest)) is not protected


@pytest.mark.parametrize("protected", [True, False])
@pytest.mark.parametrize("replayed", [IdProof, IdConfirmation])
async def test_the_digests_of_another_job_prove_nothing(
    replayed: type[Message],
    protected: bool,
    private_key: PrivateKey,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """To the new challenge of a guest goes the recorded proof; to the new proof of a host the recorded confirmation."""
    if not protected:
        use_digest(monkeypatch, without_nonces)
    recorded = await record_training(JOB, tmp_path, monkeypatch, private_key)
    if replayed is IdProof:
        guest = REAL.guest(JOB, recorded.truth.guest, private_key)
        assert is_accepted(guest, Role.HOST, only(recorded, IdProof)) is not protected
    else:
        host = REAL.host(JOB, recorded.truth.host, private_key)
        answers(host, Role.GUEST, only(recorded, IdChallenge))
        assert is_accepted(host, Role.GUEST, only(recorded, IdConfirmation)) is not protected


def is_accepted(machine: HostMachine | GuestMachine, sender: Role, message: Message) -> bool:
    """Whether the machine then tells the coordinator that it is ready."""
    try:
        return any(isinstance(answer, Ready) for answer in answers(machine, sender, message))
    except DataError:
        return False
