"""A process's certificate as its files have it now, and the credentials made of it for both ends of a connection.

Certificates are renewed while a server runs. The files are read again when they have changed, and what cannot
be used (half written, a key that is another certificate's) leaves the old in use and is logged.
"""

import ipaddress
import logging
import os
import re
import stat
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

from trilateral.common.base.errors import ConfigError
from trilateral.common.config.process import ProcessConfig, TlsConfig

log = logging.getLogger(__name__)

MAX_BYTES = 1024 * 1024
"""Of one file; a chain has a few thousand."""

SOON = 0.1
"""Share of a certificate's life that is left when a person is told; programs that renew them do so earlier."""

Now = Callable[[], datetime]


@dataclass(frozen=True)
class Identity:
    """What the files hold, checked to belong together.

    Attributes:
        certificate: the chain, PEM.
        key: its private key, PEM.
        authorities: the trusted authorities, PEM.
        names: of hosts and addresses among the certificate's subject alternative names, in lower case, in its order.
        begins, expires: the time for which the certificate is valid.
    """

    certificate: bytes
    key: bytes
    authorities: bytes
    names: tuple[str, ...]
    begins: datetime
    expires: datetime

    @property
    def host_name(self) -> str:
        """A name by which a client can ask for this certificate."""
        return self.names[0]

    def expires_soon(self, now: datetime) -> bool:
        """Tell whether so little of the certificate's life is left that a person must see to it."""
        return self.expires - now < SOON * (self.expires - self.begins)

    def __repr__(self) -> str:
        return f"Identity(names={self.names}, expires={self.expires})"  # without the key


class Certificates:
    """The identity of one process, always the newest that can be used.

    Args:
        config: where the files are.
        peer_names: names of the peers, of which the own certificate may have none.
        now: the time.

    Raises:
        ConfigError: the files as they are cannot be used.
    """

    def __init__(
        self, config: TlsConfig, peer_names: frozenset[str] = frozenset(), *, now: Now = lambda: datetime.now(UTC)
    ) -> None:
        self._config = config
        self._peer_names = peer_names
        self._now = now
        # gRPC asks for the server's identity in threads of its own.
        self._lock = threading.Lock()
        self._warned: datetime | None = None
        self._complaint: tuple[object, ...] = ()
        self._stamp = self._stamp_now()
        self._identity = self._read()
        log.info("certificate for %s, valid until %s", ", ".join(self._identity.names), self._identity.expires)

    def current(self) -> Identity:
        """Return what the files hold, or the last that could be used."""
        with self._lock:
            # The stamp is taken before the files are read: what changes in between is read again the next time.
            stamp = self._stamp_now()
            if stamp != self._stamp:
                try:
                    self._identity = self._read()
                except ConfigError as error:
                    # It is tried again each time: what ails it, such as the clock, may pass without a new file.
                    complaint = (stamp, str(error))
                    if complaint != self._complaint:
                        self._complaint = complaint
                        log.error("the changed certificate is not used, and the one before is: %s", error)
                else:
                    self._stamp = stamp
                    log.info("certificate renewed, valid until %s", self._identity.expires)
            return self._identity

    @property
    def names(self) -> tuple[str, ...]:
        """The names that this process has shown last."""
        return self._identity.names

    @property
    def expires(self) -> datetime:
        """Until when the certificate is valid that this process has shown last."""
        return self._identity.expires

    def server_credentials(self) -> grpc.ServerCredentials:
        """Return credentials by which a server shows its newest certificate, and asks each caller for its own."""
        return grpc.dynamic_ssl_server_credentials(
            _server_configuration(self._identity),
            lambda: _server_configuration(self.current()),
            require_client_authentication=True,
        )

    def warn_of_expiry(self) -> None:
        """Log that the certificate expires soon, once a day: peers only see that this process does not answer."""
        now, identity = self._now(), self._identity
        is_due = self._warned is None or now - self._warned >= timedelta(days=1)
        if is_due and identity.expires_soon(now):
            self._warned = now
            log.warning("the certificate expires on %s: renew it", identity.expires)

    # --- reading

    def _stamp_now(self) -> tuple[object, ...]:
        """What differs when a file was written or replaced."""
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
        certificate = _read_file("tls.certificate", self._config.certificate)
        authorities = _read_file("tls.authorities", self._config.authorities)
        key = _read_file("tls.key", self._config.key, private=True)
        chain = _parse("tls.certificate", self._config.certificate, certificate)
        _parse("tls.authorities", self._config.authorities, authorities)
        leaf = chain[0]
        if not _belong_together(leaf, key):
            raise ConfigError(
                f"tls.key: {self._config.key} is not the PEM key, without a passphrase, of {self._config.certificate}"
            )
        names = subject_names(leaf)
        if not names:
            raise ConfigError(
                f"tls.certificate: {self._config.certificate} has no host's name among its subject alternative "
                "names: have one issued with this organisation's name as a DNS name"
            )
        if self._peer_names & set(names):
            raise ConfigError(
                f"tls.certificate: {self._config.certificate} has a peer's name, {min(self._peer_names & set(names))}: "
                "use this process's own certificate, or correct `name` in `peers`"
            )
        now, begins, expires = self._now(), leaf.not_valid_before_utc, leaf.not_valid_after_utc
        if now > expires:
            raise ConfigError(
                f"tls.certificate: {self._config.certificate} has expired on {expires:%Y-%m-%d}: renew it"
            )
        if now < begins:
            raise ConfigError(
                f"tls.certificate: {self._config.certificate} is not valid before {begins}: "
                "wait, or set this machine's clock"
            )
        return Identity(certificate, key, authorities, names, begins, expires)


def load_certificates(config: ProcessConfig) -> Certificates | None:
    """Return the process's certificates, or None for one that was told to go without.

    Raises:
        ConfigError: a file cannot be used.
    """
    if config.tls is None:
        return None
    return Certificates(config.tls, frozenset(peer.certificate_name for peer in config.peers.values()))


def channel_credentials(identity: Identity) -> grpc.ChannelCredentials:
    """Return credentials by which a client shows this certificate, and takes only servers that its authorities know."""
    return grpc.ssl_channel_credentials(identity.authorities, identity.key, identity.certificate)


def subject_names(certificate: x509.Certificate) -> tuple[str, ...]:
    """Return the names of hosts and addresses among the subject alternative names, in lower case.

    Nothing else names a process: no e-mail address or URI, and nothing that is no name to `is_name`, such as a
    wildcard or a name with a NUL in it. A certificate whose names cannot be read has none.
    """
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, x509.DuplicateExtension, x509.UnsupportedGeneralNameType, ValueError):
        return ()
    texts = (str(name.value) for name in names if isinstance(name, x509.DNSName | x509.IPAddress))
    return tuple(text.lower() for text in texts if is_name(text))


def is_name(text: str) -> bool:
    """Tell whether `text` can be a subject alternative name here: a host's name or address, no wildcard."""
    return re.fullmatch(r"[A-Za-z0-9._:-]{1,253}", text) is not None


def subject_name(name: str) -> x509.GeneralName:
    """Return `name` as a subject alternative name: an address as an address, all else as a host's name."""
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _server_configuration(identity: Identity) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(identity.key, identity.certificate)], identity.authorities)


def _read_file(setting: str, path: Path, *, private: bool = False) -> bytes:
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            if private and mode & 0o077:
                raise ConfigError(f"{setting}: {path} can be read by others than its owner: run `chmod 600 {path}`")
            return file.read(MAX_BYTES)
    except OSError as error:
        raise ConfigError(f"{setting}: {path} cannot be read: {error.strerror}") from error


def _parse(setting: str, path: Path, pem: bytes) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(pem)
    except ValueError:
        raise ConfigError(f"{setting}: {path} is not a certificate in PEM") from None


def _belong_together(certificate: x509.Certificate, key: bytes) -> bool:
    try:
        public_key = load_pem_private_key(key, password=None).public_key()
    except (ValueError, TypeError):  # TypeError: it has a passphrase
        return False
    encoding = (Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return public_key.public_bytes(*encoding) == certificate.public_key().public_bytes(*encoding)
