"""Every caller tries every method of every service: under TLS, only a certificate gives access."""

import asyncio
import importlib
import pkgutil
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography import x509
from google.protobuf.descriptor import MethodDescriptor
from grpc_health.v1 import health_pb2

import trilateral.common.pb.v1
import trilateral.common.trial.authority
from tests.support.certificates import make_identity, new_authority, write_identity
from tests.support.three_servers import serving
from trilateral.common.base.roles import Role
from trilateral.common.config.process import ProcessConfig
from trilateral.common.rpc.access import call_metadata
from trilateral.common.rpc.certificates import Identity
from trilateral.common.rpc.channel import new_channel
from trilateral.common.rpc.errors import REASON_KEY
from trilateral.common.rpc.versions import version_metadata
from trilateral.common.trial.authority import Authority
from trilateral.common.trial.localhost import free_addresses

NAMES = {role: f"{role}.example.org" for role in Role}
ANALYST, WATCHER, STRANGER = "analyst.example.org", "watcher.example.org", "stranger.example.org"

# A row for each method: who may call it, of those with a certificate of the right authority.
PARTIES = {"host", "guest"}
ROLES = {"host", "guest", "coordinator"}
MAY_CALL: dict[str, set[str]] = {
    "trilateral.v1.HostService/ChallengeIds": {"guest"},
    "trilateral.v1.HostService/ConfirmIds": {"guest"},
    "trilateral.v1.HostService/ConfirmRows": {"guest"},
    "trilateral.v1.HostService/SendRowRoles": {"guest"},
    "trilateral.v1.HostService/SendMergedBins": {"guest"},
    "trilateral.v1.HostService/SendVector": {"guest"},
    "trilateral.v1.HostService/SendElements": {"guest"},
    "trilateral.v1.AlignmentService/OpenAlignment": {"guest"},
    "trilateral.v1.AlignmentService/IntersectShard": {"guest"},
    "trilateral.v1.AlignmentService/ConfirmShard": {"guest"},
    "trilateral.v1.AlignmentService/CloseAlignment": {"guest"},
    "trilateral.v1.PredictionService/OpenPrediction": {"guest"},
    "trilateral.v1.PredictionService/AlignPrediction": {"guest"},
    "trilateral.v1.PredictionService/SettleShard": {"guest"},
    "trilateral.v1.PredictionService/GetScores": {"guest"},
    "trilateral.v1.PredictionService/ClosePrediction": {"guest"},
    "trilateral.v1.OnlineService/GetList": {"guest"},
    "trilateral.v1.OnlineService/AnswerPoints": {"guest"},
    "trilateral.v1.ScoreService/Score": {"guest"},
    "trilateral.v1.GuestService/ProveIds": {"host"},
    "trilateral.v1.GuestService/SendRowRoles": {"host"},
    "trilateral.v1.GuestService/SendBinSizes": {"host"},
    "trilateral.v1.GuestService/SendVector": {"host"},
    "trilateral.v1.GuestService/SendElements": {"host"},
    "trilateral.v1.GuestService/SendHoldoutScores": {"host"},
    "trilateral.v1.PartyService/OpenJob": {"coordinator"},
    "trilateral.v1.PartyService/BeginRound": {"coordinator"},
    "trilateral.v1.PartyService/SendElements": {"coordinator"},
    "trilateral.v1.PartyService/FinishJob": {"coordinator"},
    "trilateral.v1.PartyService/FailJob": {"coordinator"},
    "trilateral.v1.PartyService/CheckJob": {"coordinator"},
    "trilateral.v1.CoordinatorService/ReportAlignment": {"guest"},
    "trilateral.v1.CoordinatorService/ReportReady": PARTIES,
    "trilateral.v1.CoordinatorService/SendVector": PARTIES,
    "trilateral.v1.CoordinatorService/SendElements": PARTIES,
    "trilateral.v1.CoordinatorService/ReportRowsDone": PARTIES,
    "trilateral.v1.CoordinatorService/ReportOutOfRange": PARTIES,
    "trilateral.v1.CoordinatorService/ReportEvaluation": {"guest"},
    "trilateral.v1.CoordinatorService/ReportFinished": PARTIES,
    "trilateral.v1.CoordinatorService/ReportFailure": PARTIES,
    "trilateral.v1.CoordinatorService/ReportProgress": PARTIES,
    "trilateral.v1.CoordinatorService/ReportWaiting": PARTIES,
    "trilateral.v1.ProcessService/Describe": ROLES,
    "trilateral.v1.JobService/StartJob": {"guest", ANALYST},
    "trilateral.v1.JobService/StopJob": {"coordinator", ANALYST},
    "trilateral.v1.JobService/ResumeJob": {"guest", ANALYST},
    "trilateral.v1.JobService/GetJob": {"guest", "coordinator", WATCHER},
    "trilateral.v1.JobService/ListJobs": {"guest", "coordinator", WATCHER},
    "trilateral.v1.JobService/ListRounds": {"guest", "coordinator", WATCHER},
    "trilateral.v1.JobService/WatchJob": {"guest", "coordinator", WATCHER},
    "grpc.health.v1.Health/Check": {*ROLES, ANALYST, WATCHER, STRANGER, "two roles"},
    "grpc.health.v1.Health/Watch": {*ROLES, ANALYST, WATCHER, STRANGER, "two roles"},
}
OPERATORS = {"start": ["guest", ANALYST], "stop": ["coordinator", ANALYST], "watch": ["guest", "coordinator", WATCHER]}
SERVED_BY = {
    "HostService": [Role.HOST],
    "AlignmentService": [Role.HOST],
    "PredictionService": [Role.HOST],
    "OnlineService": [Role.HOST],
    "ScoreService": [Role.GUEST],
    "GuestService": [Role.GUEST],
    "PartyService": [Role.HOST, Role.GUEST],
    "CoordinatorService": [Role.COORDINATOR],
    "JobService": [Role.COORDINATOR],
    "ProcessService": list(Role),
    "Health": list(Role),
}


def contract() -> dict[str, MethodDescriptor]:
    """Return every method that a server could have, from the generated code."""
    modules = [
        importlib.import_module(f"trilateral.common.pb.v1.{found.name}")
        for found in pkgutil.iter_modules(trilateral.common.pb.v1.__path__)
    ]
    files = [module.DESCRIPTOR for module in modules if hasattr(module, "DESCRIPTOR")]
    return {
        f"{service.full_name}/{method.name}": method
        for file in [*files, health_pb2.DESCRIPTOR]
        for service in file.services_by_name.values()
        for method in service.methods
    }


CONTRACT = contract()


def test_every_method_has_an_access_rule() -> None:
    assert MAY_CALL.keys() == CONTRACT.keys()


@dataclass
class Net:
    """Three servers, an authority that they trust, and a foreign one."""

    configs: dict[Role, ProcessConfig]
    authority: Authority
    foreign: Authority
    own: dict[Role, Identity]
    resources: AsyncExitStack
    channels: dict[tuple[Role, str], grpc.aio.Channel] = field(default_factory=dict)
    identities: dict[str, Identity] = field(default_factory=dict)

    def known_callers(self) -> dict[str, Identity]:
        """Return the callers with a valid certificate of the right authority."""
        if not self.identities:
            self.identities = {str(role): identity for role, identity in self.own.items()}
            for name in (ANALYST, WATCHER, STRANGER):
                self.identities[name] = make_identity(self.authority, name)
            self.identities["two roles"] = make_identity(self.authority, *NAMES.values())
        return self.identities

    def channel(self, role: Role, caller: str, identity: Identity | None) -> grpc.aio.Channel:
        """Return the channel from `caller` to the server of `role`; plaintext if `identity` is None."""
        if (role, caller) not in self.channels:
            channel = new_channel(self.configs[role].listen, identity, NAMES[role])
            self.channels[role, caller] = channel
            self.resources.push_async_callback(channel.close)
        return self.channels[role, caller]

    def unauthenticated(self, role: Role) -> grpc.aio.Channel:
        """Return a channel that trusts the right authority, and shows no certificate."""
        if (role, "nobody") not in self.channels:
            channel = grpc.aio.secure_channel(
                self.configs[role].listen,
                grpc.ssl_channel_credentials(self.authority.pem),
                options=[("grpc.ssl_target_name_override", NAMES[role]), ("grpc.enable_http_proxy", 0)],
            )
            self.channels[role, "nobody"] = channel
            self.resources.push_async_callback(channel.close)
        return self.channels[role, "nobody"]


@pytest.fixture
async def net(tmp_path: Path) -> AsyncIterator[Net]:
    authority, foreign = new_authority(), new_authority()
    addresses = free_addresses()
    own = {role: make_identity(authority, NAMES[role], "localhost", "::1") for role in Role}
    configs = {}
    for role in Role:
        folder = tmp_path / role
        settings: dict[str, Any] = {
            "role": role,
            "tls": write_identity(folder, own[role]),
            "listen": addresses[role],
            "peers": {other: {"address": addresses[other], "name": NAMES[other]} for other in Role if other != role},
            "state": folder / "state",
        }
        if role is Role.COORDINATOR:
            settings["operators"] = OPERATORS
        configs[role] = ProcessConfig.model_validate(settings)
    async with serving(configs), AsyncExitStack() as resources:
        yield Net(configs, authority, foreign, own, resources)


async def outcome(channel: grpc.aio.Channel, path: str, claims: str) -> str:
    """Call a method with an empty request, claiming a role; return whether it was accepted, refused, or cut off."""
    method = CONTRACT[path]
    metadata = call_metadata(Role(claims)) if claims in ROLES else version_metadata()
    call: Any
    try:
        if method.client_streaming:
            call = channel.stream_unary(f"/{path}")(metadata=metadata, timeout=10)
            with suppress(
                asyncio.InvalidStateError, grpc.aio.InternalError
            ):  # The call is over already; awaiting it raises the reason.
                await call.done_writing()
            await call
        elif method.server_streaming:
            stream: Any = channel.unary_stream(f"/{path}")
            call = stream(b"", metadata=metadata, timeout=10)
            await call.read()
            call.cancel()
        else:
            call = channel.unary_unary(f"/{path}")
            await call(b"", metadata=metadata, timeout=10)
    except grpc.aio.AioRpcError as error:
        if error.code() is grpc.StatusCode.UNAVAILABLE:
            return "cut off"
        reason = dict(error.trailing_metadata() or ()).get(REASON_KEY)
        if reason == "access":
            return "refused"
        return "not served" if error.code() is grpc.StatusCode.UNIMPLEMENTED else "taken"
    return "taken"


def servers(path: str) -> list[Role]:
    return SERVED_BY[path.partition("/")[0].rpartition(".")[2]]


async def test_a_certificate_gives_access_to_the_methods_of_its_role_only(net: Net) -> None:
    for path, may_call in MAY_CALL.items():
        for server in servers(path):
            for caller, identity in net.known_callers().items():
                # Whatever role it claims.
                claims = min(may_call & ROLES, default="guest")
                got = await outcome(net.channel(server, caller, identity), path, claims)
                assert got == ("taken" if caller in may_call else "refused"), (path, server, caller)


async def test_a_name_that_resembles_a_peers_gives_no_access(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    guest = NAMES[Role.GUEST]
    names: dict[str, x509.GeneralName] = {
        "cut by a NUL": x509.DNSName(f"{guest}\0.evil.test"),
        "URI": x509.UniformResourceIdentifier(guest),
        "e-mail address": x509.RFC822Name(guest),
    }
    for caller, name in names.items():
        with monkeypatch.context() as patch:
            patch.setattr(trilateral.common.trial.authority, "subject_name", lambda _, name=name: name)
            identity = make_identity(net.authority, guest)  # the guest's name is the common name, too
        for path in ("trilateral.v1.HostService/SendVector", "trilateral.v1.JobService/StartJob"):
            for server in servers(path):
                got = await outcome(net.channel(server, caller, identity), path, "guest")
                assert got == "refused", (path, caller)


async def test_a_caller_without_a_valid_certificate_of_the_right_authority_reaches_no_method(net: Net) -> None:
    yesterday = datetime.now(UTC) - timedelta(days=1)
    for path, may_call in MAY_CALL.items():
        for role in may_call & ROLES or ROLES:
            name = NAMES[Role(role)]
            foreign = make_identity(net.foreign, name, trusts=net.authority)
            expired = make_identity(net.authority, name, expires=yesterday)
            for server in servers(path):
                channels = {
                    "foreign": net.channel(server, f"foreign {role}", foreign),
                    "expired": net.channel(server, f"expired {role}", expired),
                    "no certificate": net.unauthenticated(server),
                    "plaintext": net.channel(server, "plaintext", None),
                }
                for caller, channel in channels.items():
                    assert await outcome(channel, path, role) == "cut off", (path, server, caller, role)


async def test_a_client_calls_a_server_only_if_its_certificate_has_the_expected_name(net: Net) -> None:
    guest = net.own[Role.GUEST]
    for expected, got in (
        (NAMES[Role.HOST], "taken"),
        (NAMES[Role.COORDINATOR], "cut off"),
        ("example.org", "cut off"),
    ):
        async with new_channel(net.configs[Role.HOST].listen, guest, expected) as channel:
            assert await outcome(channel, "grpc.health.v1.Health/Check", "guest") == got


async def test_a_client_does_not_call_a_server_of_a_foreign_authority(net: Net) -> None:
    guest = make_identity(net.authority, NAMES[Role.GUEST], trusts=net.foreign)
    async with new_channel(net.configs[Role.HOST].listen, guest, NAMES[Role.HOST]) as channel:
        assert await outcome(channel, "grpc.health.v1.Health/Check", "guest") == "cut off"
