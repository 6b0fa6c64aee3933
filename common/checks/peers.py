"""Check of the two peers: whether this process can reach them, who they are, and as whom they recognise this process.

Each step runs only if those before it succeeded, so that the finding is the first thing to fix.
"""

import asyncio
import os
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

import grpc
from cryptography import x509

from trilateral.common.base.addresses import split_address
from trilateral.common.base.errors import ConfigError, ProtocolError
from trilateral.common.base.roles import Role
from trilateral.common.checks.certificate import describe_end, describe_tls_error
from trilateral.common.checks.finding import Finding, faults, ok, problem, warning
from trilateral.common.config.process import PeerConfig, ProcessConfig, TlsConfig
from trilateral.common.process.description import Description, ask_description
from trilateral.common.rpc.certificates import SOON, Identity, load_certificates, subject_names
from trilateral.common.rpc.channel import open_channel
from trilateral.common.rpc.errors import AccessError, raised_by_peer, way_out
from trilateral.common.rpc.issuers import fingerprint, spell
from trilateral.common.rpc.pinning import client_tls, flaw_of, shake_hands
from trilateral.common.rpc.versions import WAY_OUT, own_version

SECONDS = 5.0
"""How long to wait in each step. A peer on the other side of the world needs about one second."""
CLOCK_SECONDS = 2.0
"""A larger difference of clocks is a finding. Synchronised clocks differ by hundredths of a second. Certificates and
the daily limits of policies depend on clocks."""


def check_peers(config: ProcessConfig) -> Iterator[Finding]:
    """Check both peers at the same time.

    Args:
        config: the configuration of this process.
    """
    try:
        certificates = load_certificates(config)
    except ConfigError:  # The check of the certificate reports it.
        yield problem("peers", "cannot be called until the problems of `tls` are fixed")
        return
    identity = certificates.current() if certificates else None

    async def check_both() -> list[list[Finding]]:
        return await asyncio.gather(*(_collect(_Peer(config, role, identity)) for role in config.peers))

    for findings in asyncio.run(check_both()):
        yield from findings


async def _collect(peer: "_Peer") -> list[Finding]:
    return [finding async for finding in peer.check()]


@dataclass(frozen=True)
class _Peer:
    """One peer, and what this process knows about it."""

    config: ProcessConfig
    role: Role
    identity: Identity | None

    @property
    def settings(self) -> PeerConfig:
        return self.config.peers[self.role]

    @property
    def subject(self) -> str:
        return f"peers.{self.role}"

    @property
    def host(self) -> str:
        return split_address(self.settings.address)[0]

    @property
    def port(self) -> int:
        return split_address(self.settings.address)[1]

    async def check(self) -> AsyncIterator[Finding]:
        obstacle = await self._connect()
        if obstacle:
            yield problem(self.subject, obstacle)
            return
        if self.identity is not None and self.config.tls is not None:
            async for finding in self._check_certificate(self.identity, self.config.tls):
                yield finding
                if finding.level == finding.level.PROBLEM:
                    return
        async for finding in self._check_description():
            yield finding

    # --- a connection

    async def _connect(self) -> str:
        """Resolve the name and connect; return what fails, or ''."""
        address = self.settings.address
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(SECONDS):
                await loop.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
        except (socket.gaierror, TimeoutError, UnicodeError):
            return (
                f"the name {self.host} cannot be resolved: correct `{self.subject}.address`, or the name server of "
                "this machine"
            )
        try:
            async with asyncio.timeout(SECONDS):
                _, writer = await asyncio.open_connection(self.host, self.port)
        except TimeoutError:
            return (
                f"{address} does not answer within {SECONDS:g} s: a firewall drops the packets, or the address is "
                f"wrong; open port {self.port} for this machine"
            )
        except ConnectionRefusedError:
            return (
                f"{address} refuses the connection: nothing listens there, or a firewall rejects it; start the "
                f"{self.role}, or correct the address"
            )
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno else str(error)
            return f"{address} cannot be reached: {reason}: check the network between the two machines"
        writer.close()
        return ""

    # --- its certificate

    async def _check_certificate(self, identity: Identity, tls: TlsConfig) -> AsyncIterator[Finding]:
        address = self.settings.address
        try:
            context = client_tls(identity)
        except ssl.SSLError:  # The check of the certificate reports it.
            yield problem(self.subject, "cannot be called until the problems of `tls` are fixed")
            return
        context.verify_mode = ssl.CERT_NONE
        try:
            shown, speaks_http2 = await self._shake_hands(context)
            certificate = x509.load_der_x509_certificate(shown)
        except TimeoutError:
            yield problem(
                self.subject,
                f"{address} accepts connections but does not complete a TLS handshake within {SECONDS:g} s: it is "
                "another program, or overloaded",
            )
            return
        except ssl.SSLError as error:
            yield problem(
                self.subject,
                f"{address} does not speak TLS like a {self.role} ({describe_tls_error(error)}): it is another "
                "program, or a process with `plaintext: true`",
            )
            return
        except OSError:
            yield problem(
                self.subject,
                f"{address} closes the connection in the TLS handshake: it is another program, or overloaded",
            )
            return
        except ValueError:
            yield problem(
                self.subject,
                f"`{self.subject}.name`, {self.settings.certificate_name}, is not a host name, or {address} shows no "
                "readable certificate: correct the name or the address",
            )
            return
        names, expected = subject_names(certificate), self.settings.certificate_name
        if expected not in names:
            yield problem(self.subject, self._other_name(names, expected))
            return
        context.verify_mode = ssl.CERT_REQUIRED
        try:
            await self._shake_hands(context)
        except ssl.SSLError as error:
            yield problem(
                self.subject,
                f"this process does not accept the certificate of {address}: {describe_tls_error(error)}; have it "
                f"issued by an authority in {tls.authorities}, or add its issuer there",
            )
            return
        except (OSError, TimeoutError):
            yield problem(self.subject, f"{address} closes the connection in a second TLS handshake: it is overloaded")
            return
        if not speaks_http2:
            yield problem(
                self.subject, f"{address} speaks TLS but not gRPC: it is another program, or a proxy is in between"
            )
            return
        flaw = flaw_of(certificate, self.role, self.settings, identity.authorities)
        if flaw:
            yield problem(self.subject, f"{address}: {flaw}")
            return
        yield ok(self.subject, f"the fingerprint of its key is {spell(fingerprint(certificate.public_key()))}")
        now = datetime.now(UTC)
        begins, expires = certificate.not_valid_before_utc, certificate.not_valid_after_utc
        if expires - now < SOON * (expires - begins):
            yield warning(self.subject, f"its certificate {describe_end(expires, now)}: ask its owner to renew it")

    async def _shake_hands(self, context: ssl.SSLContext) -> tuple[bytes, bool]:
        return await shake_hands(self.settings.address, self.settings.certificate_name, context, SECONDS)

    def _other_name(self, names: tuple[str, ...], expected: str) -> str:
        address = self.settings.address
        for role, other in self.config.peers.items():
            if role is not self.role and other.certificate_name in names:
                return (
                    f"{address} shows the certificate of the {role}, {other.certificate_name}: the two addresses are "
                    f"swapped, or one is given twice; correct `{self.subject}.address`"
                )
        shown = ", ".join(names[:3]) or "no host name"
        return (
            f"{address} shows a certificate for {shown} instead of {expected}: correct `{self.subject}.name` or the "
            "address"
        )

    # --- its description of itself

    async def _check_description(self) -> AsyncIterator[Finding]:
        address = self.settings.address
        async with open_channel(address, self.identity, self.settings.certificate_name) as channel:
            try:
                # The first call connects; only the second one is timed.
                await ask_description(channel, self.config.role, SECONDS)
                told = await ask_description(channel, self.config.role, SECONDS)
            except grpc.aio.AioRpcError as error:
                yield problem(self.subject, self._not_told(error))
                return
            except ProtocolError as error:
                for finding in faults(self.subject, error):
                    yield finding
                return
        for finding in self._judge(told):
            yield finding

    def _not_told(self, error: grpc.aio.AioRpcError) -> str:
        address = self.settings.address
        if raised_by_peer(error) is AccessError:
            names = ", ".join(self.identity.names) if self.identity else ""
            return (
                f"{address} does not recognise this certificate as any role ({error.details()}): at the {self.role}, "
                f"set `peers.{self.config.role}.name` to one of the certificate's names, {names}, and correct the "
                "fingerprint there if it names another key; or have the certificate issued again"
            )
        if error.code() is grpc.StatusCode.UNIMPLEMENTED:
            return (
                f"{address} speaks gRPC but is not a trilateral process, or one of a release without protocol "
                f"versions: correct the address, or {WAY_OUT}"
            )
        if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
            return f"{address} accepts connections but does not answer within {SECONDS:g} s: see the {self.role}'s log"
        return f"{address} cannot be called: {way_out(error)}"

    def _judge(self, told: Description) -> Iterator[Finding]:
        address, own = self.settings.address, own_version()
        is_right = True
        if told.role is not self.role:
            is_right = False
            yield problem(
                self.subject, f"{address} is the {told.role}, not the {self.role}: correct `{self.subject}.address`"
            )
        if told.caller is not self.config.role:
            is_right = False
            yield problem(
                self.subject,
                f"{address} recognises this process as the {told.caller}: at the {self.role}, `peers` lists the name "
                f"of this certificate under {told.caller}; correct it there",
            )
        if told.version.protocol != own.protocol:
            is_right = False
            yield problem(self.subject, f"the {self.role} speaks {told.version}, but this process {own}: {WAY_OUT}")
        elif told.version.package != own.package:
            yield warning(
                self.subject,
                f"the {self.role} runs release {told.version.package or 'unknown'}, this process {own.package}; both "
                "speak the same version of the protocol",
            )
        if is_right:
            differs = abs(told.clock_ahead) + told.uncertainty
            yield ok(
                self.subject,
                f"the {self.role} answers at {address} and recognises this process as the {told.caller}; clocks differ "
                f"by at most {differs:.1g} s",
            )
        off = abs(told.clock_ahead) - told.uncertainty
        if off > CLOCK_SECONDS:
            how = "ahead of" if told.clock_ahead > 0 else "behind"
            yield warning(
                self.subject,
                f"its clock is {abs(told.clock_ahead):,.0f} s {how} this one, but certificates and daily limits depend "
                "on clocks: synchronise both with NTP",
            )
