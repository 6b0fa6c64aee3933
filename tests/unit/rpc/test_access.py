"""Who may call what: everything that the table does not permit is refused."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID
from google.protobuf.message_factory import GetMessageClass

from tests.support.rpc import plaintext_server
from trilateral.common.base.roles import Role
from trilateral.common.config.process import PeerConfig, ProcessConfig
from trilateral.common.pb.v1 import (
    alignment_pb2,
    coordinator_pb2,
    guest_pb2,
    host_pb2,
    jobs_pb2,
    online_pb2,
    party_pb2,
    prediction_pb2,
    process_pb2,
    rounds_pb2,
)
from trilateral.common.process.server import bind
from trilateral.common.protocol.messages import ELEMENT_KINDS, Kind
from trilateral.common.rpc.access import Caller, by_certificate, call_metadata, identify
from trilateral.common.rpc.certificates import subject_name
from trilateral.common.rpc.channel import open_channel
from trilateral.common.rpc.issuers import fingerprint
from trilateral.common.rpc.versions import version_metadata
from trilateral.common.trial.authority import new_key

Signer = tuple[x509.Name, ec.EllipticCurvePrivateKey]
FILES = (
    alignment_pb2,
    coordinator_pb2,
    guest_pb2,
    host_pb2,
    jobs_pb2,
    online_pb2,
    party_pb2,
    prediction_pb2,
    process_pb2,
)
CONTRACT = {
    f"/{service.full_name}/{method.name}": method
    for file in FILES
    for service in file.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}
CALLERS = ["host", "guest", "coordinator", "operator", None, "auditor"]

# Stated once more, independently of the code.
MAY_CALL = {
    "HostService/ChallengeIds": {"guest"},
    "HostService/ConfirmIds": {"guest"},
    "HostService/ConfirmRows": {"guest"},
    "HostService/SendRowRoles": {"guest"},
    "HostService/SendMergedBins": {"guest"},
    "HostService/SendVector": {"guest"},
    "HostService/SendElements": {"guest"},
    "AlignmentService/OpenAlignment": {"guest"},
    "AlignmentService/IntersectShard": {"guest"},
    "AlignmentService/ConfirmShard": {"guest"},
    "AlignmentService/CloseAlignment": {"guest"},
    "PredictionService/OpenPrediction": {"guest"},
    "PredictionService/AlignPrediction": {"guest"},
    "PredictionService/SettleShard": {"guest"},
    "PredictionService/GetScores": {"guest"},
    "PredictionService/ClosePrediction": {"guest"},
    "OnlineService/GetList": {"guest"},
    "OnlineService/AnswerPoints": {"guest"},
    "ScoreService/Score": {"guest"},
    "GuestService/ProveIds": {"host"},
    "GuestService/SendRowRoles": {"host"},
    "GuestService/SendBinSizes": {"host"},
    "GuestService/SendVector": {"host"},
    "GuestService/SendElements": {"host"},
    "GuestService/SendHoldoutScores": {"host"},
    "PartyService/OpenJob": {"coordinator"},
    "PartyService/BeginRound": {"coordinator"},
    "PartyService/SendElements": {"coordinator"},
    "PartyService/FinishJob": {"coordinator"},
    "PartyService/CheckJob": {"coordinator"},
    "PartyService/FailJob": {"coordinator"},
    "CoordinatorService/ReportAlignment": {"guest"},
    "CoordinatorService/ReportReady": {"host", "guest"},
    "CoordinatorService/SendVector": {"host", "guest"},
    "CoordinatorService/SendElements": {"host", "guest"},
    "CoordinatorService/ReportRowsDone": {"host", "guest"},
    "CoordinatorService/ReportOutOfRange": {"host", "guest"},
    "CoordinatorService/ReportEvaluation": {"guest"},
    "CoordinatorService/ReportFinished": {"host", "guest"},
    "CoordinatorService/ReportProgress": {"host", "guest"},
    "CoordinatorService/ReportWaiting": {"host", "guest"},
    "CoordinatorService/ReportFailure": {"host", "guest"},
    "ProcessService/Describe": {"host", "guest", "coordinator"},
    "JobService/StartJob": {"guest"},
    "JobService/GetJob": {"host", "guest", "coordinator"},
    "JobService/ListJobs": {"host", "guest", "coordinator"},
    "JobService/ListRounds": {"host", "guest", "coordinator"},
    "JobService/WatchJob": {"host", "guest", "coordinator"},
    "JobService/StopJob": {"guest"},
    "JobService/ResumeJob": {"guest"},
}
MAY_SEND = {
    ("host", Kind.SCORES): {"guest"},
    ("host", Kind.SQUARES): {"guest"},
    ("host", Kind.SCORE_CHANGE): {"guest"},
    ("guest", Kind.RESIDUAL): {"host"},
    ("guest", Kind.TOTAL_CHANGE): {"host"},
    ("host", Kind.GRADIENT): {"coordinator"},
    ("guest", Kind.GRADIENT): {"coordinator"},
    ("host", Kind.CURVATURE): {"coordinator"},
    ("guest", Kind.CURVATURE): {"coordinator"},
    ("guest", Kind.LOSS): {"coordinator"},
    ("host", Kind.MASKED_COLUMNS): {"guest"},
    ("guest", Kind.MASKED_COLUMNS): {"host"},
    ("host", Kind.MASKED_SCORES): {"guest"},
    ("guest", Kind.MASKED_SCORES): {"host"},
    ("host", Kind.MASKED_RESIDUAL): {"guest"},
    ("guest", Kind.MASKED_RESIDUAL): {"host"},
    ("host", Kind.WEIGHTS): {"guest"},
    ("guest", Kind.WEIGHTS): {"host"},
    ("host", Kind.SEPARATION): {"guest"},
    ("guest", Kind.SEPARATION): {"host"},
    ("coordinator", Kind.DEALT): {"host", "guest"},
    ("host", Kind.COUNTS): {"guest"},
    ("coordinator", Kind.COUNTS): {"host", "guest"},
    ("coordinator", Kind.DEALT_SLOPES): {"host", "guest"},
    ("host", Kind.UNWEIGHTED_SLOPES): {"guest"},
    ("host", Kind.UNWEIGHTED_RESIDUAL): {"guest"},
    ("host", Kind.FINE_COLUMNS): {"guest"},
    ("guest", Kind.FINE_COLUMNS): {"host"},
    ("host", Kind.MASKED_SLOPES): {"guest"},
    ("guest", Kind.MASKED_SLOPES): {"host"},
    ("host", Kind.ROUNDED_SLOPES): {"guest"},
    ("guest", Kind.ROUNDED_SLOPES): {"host"},
    ("host", Kind.SLOPE_COLUMNS): {"guest"},
    ("guest", Kind.SLOPE_COLUMNS): {"host"},
    ("host", Kind.SUMS): {"coordinator"},
    ("guest", Kind.SUMS): {"coordinator"},
}
"""Sender and kind of a vector to its receivers."""
SERVED_BY = {
    "HostService": {Role.HOST},
    "GuestService": {Role.GUEST},
    "PartyService": {Role.HOST, Role.GUEST},
    "CoordinatorService": {Role.COORDINATOR},
}


def metadata(caller: str | None) -> tuple[tuple[str, str], ...]:
    return version_metadata() if caller is None else (("trilateral-role", caller), *version_metadata())


class Everything(grpc.GenericRpcHandler):
    """Answers every method, and one that the contract does not have, with an empty message."""

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        async def unary(request: bytes, context: Any) -> bytes:
            return b""

        async def requests(stream: AsyncIterator[Any], context: Any) -> bytes:
            async for _ in stream:
                pass
            return b""

        async def responses(request: bytes, context: Any) -> AsyncIterator[bytes]:
            yield b""

        method = CONTRACT.get(str(handler_call_details.method))
        if method is not None and method.client_streaming:
            return grpc.stream_unary_rpc_method_handler(requests, GetMessageClass(method.input_type).FromString)
        if method is not None and method.server_streaming:
            return grpc.unary_stream_rpc_method_handler(responses)
        return grpc.unary_unary_rpc_method_handler(unary)


@pytest.fixture(params=list(Role))
async def channel(request: pytest.FixtureRequest) -> AsyncIterator[grpc.aio.Channel]:
    server = plaintext_server(request.param)
    server.add_generic_rpc_handlers([Everything()])
    address = bind(server, "127.0.0.1:0", None)
    await server.start()
    async with open_channel(address, None) as channel:
        yield channel
    await server.stop(None)


async def status(channel: grpc.aio.Channel, path: str, caller: str | None, *requests: Any) -> grpc.StatusCode:
    method = CONTRACT.get(path)
    call: Any
    try:
        if method is not None and method.client_streaming:
            call = channel.stream_unary(path, request_serializer=GetMessageClass(method.input_type).SerializeToString)
            await call(iter(requests), metadata=metadata(caller), timeout=5)
        elif method is not None and method.server_streaming:
            call = channel.unary_stream(path)
            async for _ in call(b"", metadata=metadata(caller), timeout=5):
                pass
        else:
            call = channel.unary_unary(path)
            await call(b"", metadata=metadata(caller), timeout=5)
    except grpc.aio.AioRpcError as error:
        return error.code()
    return grpc.StatusCode.OK


def test_every_method_of_the_contract_and_every_kind_of_vector_is_tried_here() -> None:
    assert {f"/trilateral.v1.{method}" for method in MAY_CALL} == CONTRACT.keys()
    assert rounds_pb2.DESCRIPTOR.services_by_name == {}
    assert {kind for _, kind in MAY_SEND} == set(Kind)


async def test_every_caller_except_those_named_is_refused(channel: grpc.aio.Channel) -> None:
    for method, callers in MAY_CALL.items():
        for caller in CALLERS:
            expected = grpc.StatusCode.OK if caller in callers else grpc.StatusCode.PERMISSION_DENIED
            assert await status(channel, f"/trilateral.v1.{method}", caller) is expected, (method, caller)


async def test_anyone_may_ask_for_the_health(channel: grpc.aio.Channel) -> None:
    for method in ("Check", "Watch"):
        for caller in CALLERS:
            assert await status(channel, f"/grpc.health.v1.Health/{method}", caller) is grpc.StatusCode.OK


async def test_a_method_without_a_row_is_refused_to_everyone(channel: grpc.aio.Channel) -> None:
    for caller in CALLERS:
        refused = await status(channel, "/trilateral.v1.JobService/ExportKey", caller)
        assert refused is grpc.StatusCode.PERMISSION_DENIED


async def test_a_caller_that_claims_two_roles_gets_no_role(channel: grpc.aio.Channel) -> None:
    both = call_metadata(Role.GUEST) + call_metadata(Role.HOST)
    method: Any = channel.unary_unary("/trilateral.v1.JobService/StopJob")
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await method(b"", metadata=both, timeout=5)
    assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED


@pytest.mark.parametrize("channel", [Role.HOST, Role.GUEST, Role.COORDINATOR], indirect=True)
async def test_each_kind_of_vector_is_taken_only_from_the_role_that_makes_it(
    channel: grpc.aio.Channel, request: pytest.FixtureRequest
) -> None:
    receiver = request.node.callspec.params["channel"]
    for path, method in CONTRACT.items():
        service, name = path.removeprefix("/trilateral.v1.").split("/")
        if "kind" not in method.input_type.fields_by_name or receiver not in SERVED_BY[service]:
            continue
        for kind in Kind:
            number = rounds_pb2.VectorKind.Value(f"VECTOR_KIND_{kind.name}")
            for sender in CALLERS:
                sent = await status(channel, path, sender, GetMessageClass(method.input_type)(kind=number))
                permitted = (
                    receiver in MAY_SEND.get((str(sender), kind), set())
                    and (name == "SendElements") is (kind in ELEMENT_KINDS)
                    and (service == "PartyService") is (sender == "coordinator")
                )
                expected = grpc.StatusCode.OK if permitted else grpc.StatusCode.PERMISSION_DENIED
                assert sent is expected, (path, kind, sender)


# --- who has which certificate

PEERS = {
    Role.HOST: PeerConfig(address="10.0.0.3:1", name="host.example.org"),
    Role.GUEST: PeerConfig(address="10.0.0.4:1"),
}
OWN_NAMES = ("coordinator.example.org", "localhost", "::1")
AUTHORITY_KEY = new_key()
AUTHORITY_NAME = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "authority")])


def signed(
    subject: x509.Name, key: ec.EllipticCurvePrivateKey, *names: x509.GeneralName, by: Signer | None = None, ca: bool
) -> x509.Certificate:
    issuer, signer = by or (AUTHORITY_NAME, AUTHORITY_KEY)
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder(issuer, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(now)
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca, None), critical=True)
    )
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return builder.sign(signer, SHA256())


def to_pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(Encoding.PEM)


AUTHORITY = to_pem(signed(AUTHORITY_NAME, AUTHORITY_KEY, ca=True))


def certificate(*names: x509.GeneralName) -> bytes:
    """A certificate with these names by the authority, PEM."""
    return to_pem(signed(x509.Name([]), new_key(), *names, ca=False))


class Shown:
    """A call whose caller has presented these certificates, and claims to be the coordinator."""

    def __init__(self, *certificates: bytes) -> None:
        self._certificates = certificates

    def auth_context(self) -> dict[str, tuple[bytes, ...]]:
        # What gRPC reports for any of the names below, cut at a NUL: it must not count.
        misleading = {"x509_subject_alternative_name": (b"host.example.org",)}
        return misleading | ({"x509_pem_cert": self._certificates} if self._certificates else {})

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return call_metadata(Role.COORDINATOR)


def caller_with(*certificates: bytes) -> Caller:
    context: Any = Shown(*certificates)
    return by_certificate(context, Role.COORDINATOR, PEERS, OWN_NAMES, [AUTHORITY])


@pytest.mark.parametrize(
    ("names", "role"),
    [
        (["host.example.org"], Role.HOST),
        (["localhost", "HOST.example.org"], Role.HOST),
        (["10.0.0.4", "guest.example.org"], Role.GUEST),
        (["::1", "coordinator.example.org", "localhost"], Role.COORDINATOR),
        ([], None),
        (["stranger.example.org"], None),
        (["host.example.org.evil.example"], None),
        # A part of this process's own names, or more than them, is not its certificate.
        (["localhost"], None),
        (["coordinator.example.org"], None),
        (["coordinator.example.org", "localhost", "::1", "x.example.org"], None),
        # A certificate that matches two roles gets no role.
        (["host.example.org", "10.0.0.4"], None),
    ],
)
def test_a_certificates_names_decide_its_role(names: list[str], role: Role | None) -> None:
    caller = caller_with(certificate(*map(subject_name, names)))
    assert caller.role is role
    assert caller.names == {name.lower() for name in names}


@pytest.mark.parametrize(
    "name",
    [
        x509.DNSName("host.example.org\x00.evil.test"),
        x509.DNSName("host.example.org\x00"),
        x509.DNSName("*.example.org"),
        x509.DNSName("x" * 254),
        x509.DNSName(""),
        x509.UniformResourceIdentifier("host.example.org"),
        x509.UniformResourceIdentifier("https://host.example.org"),
        x509.RFC822Name("host.example.org"),
        x509.RFC822Name("root@host.example.org"),
        x509.DirectoryName(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "host.example.org")])),
        x509.RegisteredID(x509.ObjectIdentifier("1.2.3")),
    ],
)
def test_only_host_names_and_addresses_count(name: x509.GeneralName) -> None:
    assert caller_with(certificate(name)) == Caller(None)
    beside = caller_with(certificate(name, x509.DNSName("stranger.example.org")))
    assert beside == Caller(None, frozenset({"stranger.example.org"}))


def test_a_certificate_that_cannot_be_read_has_no_role() -> None:
    host = certificate(x509.DNSName("host.example.org"))
    for certificates in ((), (b"",), (b"words",), (host[:100],), (host, host)):
        assert caller_with(*certificates) == Caller(None)


def test_a_process_without_names_recognises_no_caller_as_itself() -> None:
    context: Any = Shown(certificate())
    assert by_certificate(context, Role.COORDINATOR, {}, (), [AUTHORITY]).role is None


# --- issuers and keys

HOST_NAME = x509.DNSName("host.example.org")
NOT_ISSUED = "a caller whose certificate was not issued directly by an authority in `tls.authorities`"


def chain(*, ca: bool = True) -> tuple[x509.Certificate, x509.Certificate]:
    """A certificate with the host's name, and the certificate between it and the authority."""
    name, key = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "between")]), new_key()
    between = signed(name, key, x509.DNSName("stranger.example.org"), ca=ca)
    return signed(x509.Name([]), new_key(), HOST_NAME, by=(name, key), ca=False), between


def identify_with(shown: bytes, *authorities: bytes, peers: dict[Role, PeerConfig] = PEERS) -> Caller:
    context: Any = Shown(shown)
    return by_certificate(context, Role.COORDINATOR, peers, OWN_NAMES, authorities)


def test_a_certificate_of_an_intermediate_has_neither_role_nor_names() -> None:
    leaf, _ = chain()
    caller = identify_with(to_pem(leaf), AUTHORITY)
    assert caller.role is None
    assert caller.names == frozenset()
    assert str(caller) == NOT_ISSUED


def test_an_intermediate_counts_once_it_is_an_authority_itself_and_may_sign() -> None:
    leaf, between = chain()
    assert identify_with(to_pem(leaf), AUTHORITY, to_pem(between)).role is Role.HOST
    assert identify_with(to_pem(leaf), AUTHORITY + to_pem(between)).role is Role.HOST
    leaf, between = chain(ca=False)
    assert str(identify_with(to_pem(leaf), AUTHORITY, to_pem(between))) == NOT_ISSUED


def test_an_authority_of_the_same_name_with_another_key_has_issued_nothing() -> None:
    key = new_key()
    other = to_pem(signed(AUTHORITY_NAME, key, by=(AUTHORITY_NAME, key), ca=True))
    host = certificate(HOST_NAME)
    assert str(identify_with(host, other)) == NOT_ISSUED
    assert str(identify_with(host)) == NOT_ISSUED
    assert identify_with(host, other + AUTHORITY).role is Role.HOST


def pinned(*keys: ec.EllipticCurvePrivateKey) -> dict[Role, PeerConfig]:
    pins = [fingerprint(key.public_key()) for key in keys]
    return PEERS | {Role.HOST: PEERS[Role.HOST].model_copy(update={"fingerprint": pins})}


def test_a_peer_with_pins_is_recognised_by_each_of_these_keys_and_no_other() -> None:
    old, new, other = new_key(), new_key(), new_key()
    shown = {key: to_pem(signed(x509.Name([]), key, HOST_NAME, ca=False)) for key in (old, new, other)}
    assert identify_with(shown[old], AUTHORITY, peers=pinned(old)).role is Role.HOST
    for key in (old, new):
        assert identify_with(shown[key], AUTHORITY, peers=pinned(old, new)).role is Role.HOST
    refused = identify_with(shown[other], AUTHORITY, peers=pinned(old, new))
    assert refused.role is None
    assert refused.names == frozenset()
    assert "has the host's name, but another key than `peers.host.fingerprint` says" in str(refused)


def test_the_pin_of_one_peer_says_nothing_about_the_other() -> None:
    guest = certificate(subject_name("10.0.0.4"))
    assert identify_with(guest, AUTHORITY, peers=pinned(new_key())).role is Role.GUEST


def test_a_change_of_the_settings_counts_for_a_certificate_that_has_been_seen(tmp_path: Path) -> None:
    key = new_key()
    shown = Shown(to_pem(signed(x509.Name([]), key, HOST_NAME, ca=False)))
    local = {role: f"127.0.0.1:{port}" for port, role in enumerate(PEERS, start=1)}
    before = ProcessConfig(
        role=Role.COORDINATOR, listen="127.0.0.1:0", peers=local, state=tmp_path, plaintext=True
    ).model_copy(update={"peers": pinned(key)})
    configs = [before]
    certificates: Any = SimpleNamespace(names=OWN_NAMES, authorities=[AUTHORITY])
    who = identify(lambda: configs[-1], certificates)
    context: Any = shown
    assert [who(context).role for _ in range(2)] == [Role.HOST] * 2
    configs.append(before.model_copy(update={"peers": pinned(new_key())}))
    assert [who(context).role for _ in range(2)] == [None] * 2
    configs.append(before)
    certificates.authorities = []
    assert who(context).role is None
