"""Keys, certificates and signing requests, made in memory.

`trilateral certs` makes keys, signing requests and development certificates with this module. The tests use the same
code, so that they need no library for test certificates. An authority made here is for development and tests only: its
key exists only in the object and is never written.
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
"""How long before its creation a certificate becomes valid, because clocks differ."""
# Every process is a server for its peers and a client of them.
USAGES = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])


class Authority:
    """A certificate authority.

    Args:
        name: the common name of the authority.
        valid: how long its own certificate and, by default, those that it issues are valid.
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
        """The authority's own certificate in PEM."""
        return self._certificate.public_bytes(Encoding.PEM)

    def issue(self, names: Sequence[str], key: ec.EllipticCurvePrivateKey, *, expires: datetime | None = None) -> bytes:
        """Issue a certificate.

        Args:
            names: subject alternative names, host names or IP addresses; the first is also the common name.
            key: the key of the holder.
            expires: the end of its validity, with a time zone; by default after the authority's `valid`.

        Returns:
            The certificate in PEM.
        """
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
