"""Keys, certificates and signing requests, made in memory.

`trilateral certs` makes keys, signing requests and development certificates with this module. The tests use the same
code, so that they need no library for test certificates. An authority's key is written only by `certs authority`, with
a passphrase.
"""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from trilateral.common.rpc.certificates import subject_name, subject_names
from trilateral.common.rpc.issuers import KEYS, fingerprint, is_supported, may_sign

EARLIER = timedelta(hours=1)
"""How long before its creation a certificate becomes valid, because clocks differ."""
# Every process is a server for its peers and a client of them.
USAGES = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])


AuthorityKey = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey


class Authority:
    """A certificate authority.

    Args:
        name: the common name of the authority.
        valid: how long its own certificate and, by default, those that it issues are valid.
    """

    def __init__(self, name: str, valid: timedelta) -> None:
        self._valid = valid
        self._key: AuthorityKey = new_key()
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self._certificate = (
            self._builder(self._key.public_key(), datetime.now(UTC) + valid)
            .subject_name(self._name)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_key_usage(signs_certificates=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False)
            .sign(self._key, SHA256())
        )

    @classmethod
    def load(cls, certificate: bytes, key: bytes, passphrase: bytes, valid: timedelta) -> "Authority":
        """Return an authority from its files.

        Args:
            certificate: its certificate in PEM.
            key: its private key in PEM.
            passphrase: of the key.
            valid: how long the certificates that it issues are valid by default.

        Raises:
            ValueError: the files cannot be read or do not belong together, the passphrase is wrong, or the certificate
                is not an authority's. The text says which.
        """
        try:
            loaded = x509.load_pem_x509_certificate(certificate)
        except ValueError:
            raise ValueError("its certificate is not one in PEM") from None
        if not may_sign(loaded):
            raise ValueError("its certificate does not permit it to sign certificates")
        try:
            private_key = load_pem_private_key(key, passphrase)
        except (ValueError, TypeError, UnsupportedAlgorithm):
            raise ValueError("the passphrase is wrong, or its key is not one in PEM with a passphrase") from None
        if not isinstance(private_key, ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey):
            raise ValueError("its key is neither RSA nor elliptic-curve")
        if fingerprint(private_key.public_key()) != fingerprint(loaded.public_key()):
            raise ValueError("its key is not that of its certificate")
        authority = cls.__new__(cls)
        authority._valid, authority._key = valid, private_key
        authority._name, authority._certificate = loaded.subject, loaded
        return authority

    @property
    def pem(self) -> bytes:
        """The authority's own certificate in PEM."""
        return self._certificate.public_bytes(Encoding.PEM)

    @property
    def certificate(self) -> x509.Certificate:
        """The authority's own certificate."""
        return self._certificate

    def encrypted_key(self, passphrase: bytes) -> bytes:
        """Return the authority's private key in PEM, encrypted with a passphrase."""
        return self._key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(passphrase))

    def issue(self, names: Sequence[str], key: ec.EllipticCurvePrivateKey, *, expires: datetime | None = None) -> bytes:
        """Issue a certificate.

        Args:
            names: subject alternative names, host names or IP addresses; the first is also the common name.
            key: the key of the holder.
            expires: the end of its validity, with a time zone; by default after the authority's `valid`.

        Returns:
            The certificate in PEM.
        """
        return self._issue(names, key.public_key(), expires)

    def sign(self, request: x509.CertificateSigningRequest, names: Sequence[str]) -> bytes:
        """Issue a certificate for the key of a request. Nothing else is taken from the request.

        Args:
            request: a request that `read_request` has accepted.
            names: subject alternative names; see `issue`.

        Returns:
            The certificate in PEM. It does not outlive the authority's own.
        """
        expires = min(datetime.now(UTC) + self._valid, self._certificate.not_valid_after_utc)
        return self._issue(names, request.public_key(), expires)

    def _issue(self, names: Sequence[str], key: CertificatePublicKeyTypes, expires: datetime | None) -> bytes:
        certificate = (
            self._builder(key, expires or datetime.now(UTC) + self._valid)
            .subject_name(_common_name(names))
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(signs_certificates=False), critical=True)
            .add_extension(USAGES, critical=False)
            .add_extension(_alternative_names(names), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
            .sign(self._key, SHA256())
        )
        return certificate.public_bytes(Encoding.PEM)

    def _builder(self, key: CertificatePublicKeyTypes, expires: datetime) -> x509.CertificateBuilder:
        start = min(datetime.now(UTC), expires) - EARLIER
        return (
            x509.CertificateBuilder()
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(start)
            .not_valid_after(expires)
        )


def new_key() -> ec.EllipticCurvePrivateKey:
    """Make a private key on P-256, which every TLS library supports."""
    return ec.generate_private_key(ec.SECP256R1())


def key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Return the key in PEM, unencrypted, because a server cannot ask for a passphrase when it starts."""
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def signing_request(names: Sequence[str], key: ec.EllipticCurvePrivateKey) -> bytes:
    """Make a request for a certificate.

    Args:
        names: subject alternative names, host names or IP addresses; the first is also the common name.
        key: the key of the holder.

    Returns:
        The signing request in PEM.
    """
    request = (
        x509.CertificateSigningRequestBuilder()
        .subject_name(_common_name(names))
        .add_extension(_alternative_names(names), critical=False)
        .add_extension(USAGES, critical=False)
        .sign(key, SHA256())
    )
    return request.public_bytes(Encoding.PEM)


def read_request(pem: bytes) -> x509.CertificateSigningRequest:
    """Read a request, and check that its sender holds the key and that every TLS library here accepts the key.

    Args:
        pem: the request in PEM.

    Raises:
        ValueError: it is no such request. The text says why.
    """
    try:
        request = x509.load_pem_x509_csr(pem)
    except ValueError:
        raise ValueError("is not a signing request in PEM") from None
    try:
        key = request.public_key()
        is_signed = request.is_signature_valid
    except (ValueError, UnsupportedAlgorithm):
        raise ValueError(f"has a key or a signature of an unknown kind: {KEYS}") from None
    if not is_signed:
        raise ValueError("is not signed by the key in it, so its sender may not hold that key")
    if not is_supported(key):
        raise ValueError(f"has a key that TLS libraries refuse: {KEYS}")
    return request


def requested(request: x509.CertificateSigningRequest) -> tuple[tuple[str, ...], bool]:
    """Return the names that a request asks for, and whether it asks for the right to sign certificates."""
    try:
        constraints = request.extensions.get_extension_for_class(x509.BasicConstraints).value
        wants_to_sign = constraints.ca
    except (x509.ExtensionNotFound, x509.DuplicateExtension, x509.UnsupportedGeneralNameType, ValueError):
        wants_to_sign = False
    return subject_names(request), wants_to_sign


def _common_name(names: Sequence[str]) -> x509.Name:
    """Return the first name as the common name, which only people read. X.509 allows 64 characters."""
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name) for name in names[:1] if len(name) <= 64])


def _alternative_names(names: Sequence[str]) -> x509.SubjectAlternativeName:
    return x509.SubjectAlternativeName([subject_name(name) for name in names])


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
