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
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key

from trilateral.common.base.errors import ConfigError
from trilateral.common.base.files import file_stamp
from trilateral.common.base.permissions import explain
from trilateral.common.config.process import ProcessConfig, TlsConfig
from trilateral.common.rpc.issuers import KEYS, fingerprint, is_supported

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
                        log.info("the authorities in %s have changed", self._config.authorities)
                    if renewed.certificate != self._identity.certificate:
                        log.info("certificate renewed, valid until %s", renewed.expires)
                    self._identity = renewed
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
        files = self._config.certificate, self._config.key, self._config.authorities
        return tuple(file_stamp(path) for path in files)

    def _read(self) -> Identity:
        files = self._config
        certificate = read_file(f"tls.certificate: {files.certificate}", files.certificate)
        authorities = read_file(f"tls.authorities: {files.authorities}", files.authorities)
        key_pem = read_file(f"tls.key: {files.key}", files.key, forbidden=0o077)
        key = _parse_key("tls.key", files.key, key_pem)
        chain = _parse("tls.certificate", self._config.certificate, certificate)
        trusted = _parse("tls.authorities", self._config.authorities, authorities)
        leaf = chain[0]
        self._check_key(chain, key)
        names = subject_names(leaf)
        if not names:
            raise ConfigError(f"tls.certificate: {self._config.certificate} {_lack_of_names(leaf)}")
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
        return Identity(_pem(chain), _key_pem(key), _pem(trusted), names, begins, expires)

    def _check_key(self, chain: Sequence[x509.Certificate], key: PrivateKeyTypes) -> None:
        """Check that the key belongs to the first certificate, and that peers can use it."""
        file, own = self._config.certificate, fingerprint(key.public_key())  # type: ignore[arg-type]
        owners = [place for place, each in enumerate(chain) if _fingerprint_of(each) == own]
        if not owners:
            raise ConfigError(f"tls.key: {self._config.key} is not the private key of {file}")
        if owners[0] > 0:
            raise ConfigError(
                f"tls.certificate: {file} begins with the certificate of {chain[0].subject.rfc4514_string()!r}, and "
                f"the process's own certificate is number {owners[0] + 1} in it: put the own certificate first, and "
                "after it the certificate of its issuer"
            )
        if not is_supported(chain[0].public_key()):
            raise ConfigError(f"tls.certificate: {file} has a key that TLS libraries refuse: {KEYS}")


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


def read_file(what: str, path: Path, *, forbidden: int = 0) -> bytes:
    """Read a small file.

    Args:
        what: the setting or the option, with the path, as errors name it.
        path: the file.
        forbidden: permissions that the file must not have.

    Raises:
        ConfigError: it cannot be read, or has one of these permissions.
    """
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            # A pipe has a mode that no one has chosen: `--passphrase-file <(command)`.
            if stat.S_ISREG(status.st_mode) and stat.S_IMODE(status.st_mode) & forbidden:
                raise ConfigError(f"{what} can be read by users other than its owner: run `chmod 600 {path}`")
            return file.read(MAX_BYTES)
    except OSError as error:
        raise ConfigError(f"{what} cannot be read: {explain(error, path)}") from error


def _parse(setting: str, path: Path, pem: bytes) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(pem)
    except ValueError:
        raise ConfigError(f"{setting}: {path} is not a certificate in PEM") from None


def _parse_key(setting: str, path: Path, pem: bytes) -> PrivateKeyTypes:
    try:
        return load_pem_private_key(pem, password=None)
    except TypeError:
        raise ConfigError(
            f"{setting}: {path} has a passphrase, which a server cannot ask for: remove it, for example with "
            "`openssl pkey`, and protect the file by its mode"
        ) from None
    except (ValueError, UnsupportedAlgorithm):
        raise ConfigError(f"{setting}: {path} is not a private key in PEM, or one of an unknown kind: {KEYS}") from None


# gRPC's library reads PEM in another way than others: it stops at a byte-order mark and at indented lines, for example.
# So it gets what was read here, written again.


def _pem(certificates: Iterable[x509.Certificate]) -> bytes:
    return b"".join(each.public_bytes(Encoding.PEM) for each in certificates)


def _key_pem(key: PrivateKeyTypes) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _fingerprint_of(certificate: x509.Certificate) -> str | None:
    try:
        return fingerprint(certificate.public_key())
    except (ValueError, UnsupportedAlgorithm):
        return None


def _lack_of_names(certificate: x509.Certificate) -> str:
    """Say why no name in a certificate identifies a process, and what to do."""
    wanted = "have one issued with this organisation's name as a DNS name"
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        wildcards = [text for text in map(str, names.get_values_for_type(x509.DNSName)) if text.startswith("*")]
    except (x509.ExtensionNotFound, x509.DuplicateExtension, x509.UnsupportedGeneralNameType, ValueError):
        wildcards = []
    if wildcards:
        return f"has only the wildcard {wildcards[0]:.100}, which many could share: {wanted}, without a wildcard"
    return f"has no host name among its subject alternative names: {wanted}"
