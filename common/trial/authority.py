"""Keys, certificates and signing requests: made in memory, nothing is written.

An authority made here is for development and tests: its key exists nowhere but in this object.
"""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from trilateral.common.rpc.certificates import subject_name

EARLIER = timedelta(hours=1)
"""Certificates are valid from that long before they are made: clocks differ."""
# Every process is a server to its peers, and their client.
USAGES = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])


class Authority:
    """One that vouches for keys.

    Args:
        name: of the authority.
        valid: how long it and what it issues are.
    """

    def __init__(self, name: str, valid: timedelta) -> None:
        self._valid = valid
        self._key = new_key()
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self._certificate = (
            self._builder(self._key.public_key(), datetime.now(UTC) + valid)
            .subject_name(self._name)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_key_usage(signs_certificates=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False)
            .sign(self._key, SHA256())
        )

    @property
    def pem(self) -> bytes:
        """The authority's own certificate."""
        return self._certificate.public_bytes(Encoding.PEM)

    def issue(self, names: Sequence[str], key: ec.EllipticCurvePrivateKey, *, expires: datetime | None = None) -> bytes:
        """Return a certificate, PEM, that gives `names` to the holder of `key`."""
        certificate = (
            self._builder(key.public_key(), expires or datetime.now(UTC) + self._valid)
            .subject_name(_common_name(names))
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(signs_certificates=False), critical=True)
            .add_extension(USAGES, critical=False)
            .add_extension(_alternative_names(names), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
            .sign(self._key, SHA256())
        )
        return certificate.public_bytes(Encoding.PEM)

    def _builder(self, key: ec.EllipticCurvePublicKey, expires: datetime) -> x509.CertificateBuilder:
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
    """Make a private key, on the curve that every TLS library knows."""
    return ec.generate_private_key(ec.SECP256R1())


def key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Return the key in PEM, not encrypted: a server starts without anyone to ask for a passphrase."""
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def signing_request(names: Sequence[str], key: ec.EllipticCurvePrivateKey) -> bytes:
    """Return a request, PEM, for a certificate that gives `names` to the holder of `key`."""
    request = (
        x509.CertificateSigningRequestBuilder()
        .subject_name(_common_name(names))
        .add_extension(_alternative_names(names), critical=False)
        .add_extension(USAGES, critical=False)
        .sign(key, SHA256())
    )
    return request.public_bytes(Encoding.PEM)


def _common_name(names: Sequence[str]) -> x509.Name:
    """For people: nothing here is decided by it. X.509 allows it 64 characters."""
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
