"""A process's certificate, read from its files, and the credentials for both ends of a connection.

A certificate can be renewed while a server runs: the files are read again when they have changed. If the new files
cannot be used, for example because one is half-written or the key does not match, the error is logged and the last
certificate stays in use.
"""

import ipaddress
import logging
import os
import re
import stat
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

from trilateral.common.base.errors import ConfigError
from trilateral.common.base.permissions import explain
from trilateral.common.config.process import ProcessConfig, TlsConfig

log = logging.getLogger(__name__)

MAX_BYTES = 1024 * 1024
"""Maximum size of one file; a chain has a few thousand bytes."""

SOON = 0.1
"""The log warns of the expiry when this share of a certificate's lifetime is left. Programs renew certificates
earlier."""

SETTLE_SECONDS = 0.2
"""Time for which a server's new configuration waits until no handshake is about to use the last one."""

TICKET_SECONDS = 3_600.0
"""Time after which a caller has to show its certificate again, as after the age of a connection in `channel`."""

Now = Callable[[], datetime]


@dataclass(frozen=True)
class Identity:
    """A certificate, its key and the trusted authorities, checked to match.

    Attributes:
        certificate: the chain, PEM.
        key: the private key, PEM.
        authorities: the trusted authorities, PEM.
        names: host names and addresses among the subject alternative names, in lower case, in their order.
        begins: the start of the certificate's validity.
        expires: the end of the certificate's validity.
    """

    certificate: bytes
    key: bytes
    authorities: bytes
    names: tuple[str, ...]
    begins: datetime
    expires: datetime

    @property
    def host_name(self) -> str:
        """A name that a client can expect of this certificate."""
        return self.names[0]

    def expires_soon(self, now: datetime) -> bool:
        """Return whether less than the share `SOON` of the certificate's lifetime is left."""
        return self.expires - now < SOON * (self.expires - self.begins)

    def __repr__(self) -> str:
        return f"Identity(names={self.names}, expires={self.expires})"  # without the key


class Certificates:
    """The newest usable identity of one process.

    Args:
        config: where the files are.
        peer_names: names of the peers, which the process's own certificate must not have.
        now: returns the time.

    Raises:
        ConfigError: the files cannot be used.
    """

    def __init__(
        self, config: TlsConfig, peer_names: frozenset[str] = frozenset(), *, now: Now = lambda: datetime.now(UTC)
    ) -> None:
        self._config = config
        self._peer_names = peer_names
        self._now = now
        # gRPC asks for the server's identity from its own threads.
        self._lock = threading.Lock()
        self._warned: datetime | None = None
        self._complaint: tuple[object, ...] = ()
        self._stamp = self._stamp_now()
        self._identity = self._read()
        self._former_authorities = self._identity.authorities
        log.info("certificate for %s, valid until %s", ", ".join(self._identity.names), self._identity.expires)

    def current(self) -> Identity:
        """Return the identity in the files, or the last that could be used."""
        with self._lock:
            # Take the stamp before reading, so that a change in between is found the next time.
            stamp = self._stamp_now()
            if stamp != self._stamp:
                try:
                    renewed = self._read()
                except ConfigError as error:
                    # Every call tries again: the cause, such as a wrong clock, may go away without a new file.
                    complaint = (stamp, str(error))
                    if complaint != self._complaint:
                        self._complaint = complaint
                        log.error("the changed certificate cannot be used; the last one stays in use: %s", error)
                else:
                    self._stamp = stamp
                    if renewed.authorities != self._identity.authorities:
                        self._former_authorities = self._identity.authorities
                    self._identity = renewed
                    log.info("certificate renewed, valid until %s", self._identity.expires)
            return self._identity

    @property
    def names(self) -> tuple[str, ...]:
        """The names in the certificate in use."""
        return self._identity.names

    @property
    def authorities(self) -> tuple[bytes, bytes]:
        """The authorities in use and those before the last change, PEM.

        Connections made before the change still carry calls. gRPC judges new ones by the authorities in use.
        """
        return self._identity.authorities, self._former_authorities

    @property
    def expires(self) -> datetime:
        """The end of validity of the certificate in use."""
        return self._identity.expires

    def server_credentials(self) -> grpc.ServerCredentials:
        """Return credentials with which a server presents its newest certificate and requires one of each caller."""
        given, since = self._identity, time.monotonic()

        def renewed() -> grpc.ServerCertificateConfiguration | None:
            # gRPC asks at each new connection, from threads of its own but one at a time. Once it is given a
            # configuration, it frees the last one, although another thread may be about to start a handshake with
            # that: the process then crashes (https://github.com/grpc/grpc/issues/36693). So it is given one only for a
            # renewed certificate, and once an hour, as each makes the tickets of earlier sessions void: a caller that
            # resumes a session does not show its certificate again. While gRPC waits for a configuration, no other
            # thread can start, and those that have the last one have time to take a reference to it.
            nonlocal given, since
            identity = self.current()
            if identity == given and time.monotonic() - since < TICKET_SECONDS:
                return None
            time.sleep(SETTLE_SECONDS)
            given, since = identity, time.monotonic()
            return _server_configuration(identity)

        return grpc.dynamic_ssl_server_credentials(
            _server_configuration(given),
            renewed,  # type: ignore[arg-type]  # the stubs forget that None means no change
            require_client_authentication=True,
        )

    def warn_of_expiry(self) -> None:
        """Log once a day that the certificate expires soon: after that, peers only see that this process is silent."""
        now, identity = self._now(), self._identity
        is_due = self._warned is None or now - self._warned >= timedelta(days=1)
        if is_due and identity.expires_soon(now):
            self._warned = now
            log.warning("the certificate expires on %s: renew it", identity.expires)

    # --- reading

    def _stamp_now(self) -> tuple[object, ...]:
        """Return a value that changes when a file is written or replaced."""
        stamps: list[object] = []
        for path in (self._config.certificate, self._config.key, self._config.authorities):
            try:
                status = path.stat()
            except OSError as error:
                stamps.append(error.errno)
            else:
                stamps.append((status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns))
        return tuple(stamps)

    def _read(self) -> Identity:
        certificate = read_file("tls.certificate", self._config.certificate)
        authorities = read_file("tls.authorities", self._config.authorities)
        key = read_file("tls.key", self._config.key, forbidden=0o077)
        chain = _parse("tls.certificate", self._config.certificate, certificate)
        _parse("tls.authorities", self._config.authorities, authorities)
        leaf = chain[0]
        if not _belong_together(leaf, key):
            raise ConfigError(
                f"tls.key: {self._config.key} is not the private key of {self._config.certificate}, or is not a PEM "
                "file without a passphrase"
            )
        names = subject_names(leaf)
        if not names:
            raise ConfigError(
                f"tls.certificate: {self._config.certificate} has no host name among its subject alternative "
                "names: have one issued with this organisation's name as a DNS name"
            )
        if self._peer_names & set(names):
            raise ConfigError(
                f"tls.certificate: {self._config.certificate} has a peer's name, {min(self._peer_names & set(names))}: "
                "use this process's own certificate, or correct `name` in `peers`"
            )
        now, begins, expires = self._now(), leaf.not_valid_before_utc, leaf.not_valid_after_utc
        if now > expires:
            raise ConfigError(f"tls.certificate: {self._config.certificate} expired on {expires:%Y-%m-%d}: renew it")
        if now < begins:
            raise ConfigError(
                f"tls.certificate: {self._config.certificate} is not valid before {begins}: "
                "wait, or set this machine's clock"
            )
        return Identity(certificate, key, authorities, names, begins, expires)


def load_certificates(config: ProcessConfig) -> Certificates | None:
    """Return the process's certificates; None for a process that is configured for plaintext.

    Raises:
        ConfigError: a file cannot be used.
    """
    if config.tls is None:
        return None
    return Certificates(config.tls, frozenset(peer.certificate_name for peer in config.peers.values()))


def channel_credentials(identity: Identity) -> grpc.ChannelCredentials:
    """Return credentials with which a client presents this identity and accepts servers of its authorities only."""
    return grpc.ssl_channel_credentials(identity.authorities, identity.key, identity.certificate)


def subject_names(certificate: x509.Certificate | x509.CertificateSigningRequest) -> tuple[str, ...]:
    """Return the host names and addresses among the subject alternative names, in lower case.

    Only these names identify a process. E-mail addresses, URIs and texts that `is_name` rejects, such as a wildcard or
    a name that contains a NUL, do not count. A certificate or a request whose names cannot be read has no names.
    """
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, x509.DuplicateExtension, x509.UnsupportedGeneralNameType, ValueError):
        return ()
    texts = (str(name.value) for name in names if isinstance(name, x509.DNSName | x509.IPAddress))
    return tuple(text.lower() for text in texts if is_name(text))


def is_name(text: str) -> bool:
    """Return whether `text` is valid here as a subject alternative name: a host name or address without wildcards."""
    return re.fullmatch(r"[A-Za-z0-9._:-]{1,253}", text) is not None


def subject_name(name: str) -> x509.GeneralName:
    """Return `name` as a subject alternative name: an IP address as such, any other text as a host name."""
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _server_configuration(identity: Identity) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(identity.key, identity.certificate)], identity.authorities)


def read_file(setting: str, path: Path, *, forbidden: int = 0) -> bytes:
    """Read a small file that a setting names.

    Args:
        setting: the setting.
        path: the file.
        forbidden: permissions that the file must not have.

    Raises:
        ConfigError: the file cannot be read, or has one of these permissions.
    """
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            if mode & forbidden:
                raise ConfigError(
                    f"{setting}: {path} can be read by users other than its owner: run `chmod 600 {path}`"
                )
            return file.read(MAX_BYTES)
    except OSError as error:
        raise ConfigError(f"{setting}: {path} cannot be read: {explain(error, path)}") from error


def _parse(setting: str, path: Path, pem: bytes) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(pem)
    except ValueError:
        raise ConfigError(f"{setting}: {path} is not a certificate in PEM") from None


def _belong_together(certificate: x509.Certificate, key: bytes) -> bool:
    try:
        public_key = load_pem_private_key(key, password=None).public_key()
    except (ValueError, TypeError):  # TypeError: the key has a passphrase
        return False
    encoding = (Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return public_key.public_bytes(*encoding) == certificate.public_key().public_bytes(*encoding)
