"""Valid and invalid certificates for tests."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509 import load_pem_x509_certificate

from trilateral.common.base.files import write_whole
from trilateral.common.config.process import TlsConfig
from trilateral.common.rpc.certificates import Identity
from trilateral.common.trial.authority import Authority, key_pem, new_key


def new_authority() -> Authority:
    return Authority("tests", timedelta(days=1))


def root_without_limit() -> Authority:
    """Return an authority as `openssl req -x509` makes it: `trilateral certs authority` limits the length of chains."""
    key, word = new_key(), b"passphrase"
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "root")])
    begins = datetime.now(UTC) - timedelta(hours=1)
    builder = x509.CertificateBuilder(name, name, key.public_key(), 1, begins, begins + timedelta(days=1))
    certificate = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True).sign(
        key, SHA256()
    )
    encrypted = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(word))
    return Authority.load(certificate.public_bytes(Encoding.PEM), encrypted, word, timedelta(hours=5))


def make_identity(
    authority: Authority, *names: str, trusts: Authority | None = None, expires: datetime | None = None
) -> Identity:
    """Issue a certificate of `authority`; its holder trusts `trusted` if given, else `authority`."""
    key = new_key()
    pem = authority.issue(names, key, expires=expires)
    certificate = load_pem_x509_certificate(pem)
    return Identity(
        pem,
        key_pem(key),
        (trusts or authority).pem,
        names,
        certificate.not_valid_before_utc,
        certificate.not_valid_after_utc,
    )


def write_identity(folder: Path, identity: Identity) -> TlsConfig:
    """Write the three files, replacing existing ones, and return the `tls` settings."""
    files = TlsConfig(certificate=folder / "own.pem", key=folder / "key.pem", authorities=folder / "authorities.pem")
    write_whole(files.key, identity.key.decode())
    write_whole(files.certificate, identity.certificate.decode())
    write_whole(files.authorities, identity.authorities.decode())
    return files


def signed_as_requested(authority: Authority, name: str) -> tuple[Identity, Authority]:
    """Let an authority sign a request that asks for CA:TRUE, as `openssl x509 -copy_extensions copy` does.

    Returns:
        The requester's identity, and the authority that it has become.
    """
    word = b"passphrase"
    own = Authority(name, timedelta(days=1))
    certificate, issuer = own.certificate, authority.certificate
    builder = x509.CertificateBuilder(
        issuer.subject,
        certificate.subject,
        certificate.public_key(),
        x509.random_serial_number(),
        certificate.not_valid_before_utc,
        certificate.not_valid_after_utc,
    )
    builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    signer = load_pem_private_key(authority.encrypted_key(word), word)
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    signed = builder.sign(signer, SHA256())
    pem, key = signed.public_bytes(Encoding.PEM), own.encrypted_key(word)
    plain = load_pem_private_key(key, word)
    assert isinstance(plain, ec.EllipticCurvePrivateKey)
    times = (signed.not_valid_before_utc, signed.not_valid_after_utc)
    identity = Identity(pem, key_pem(plain), authority.pem, (name,), *times)
    return identity, Authority.load(pem, key, word, timedelta(days=1))


def issued_below(authority: Authority, between: Authority, name: str) -> Identity:
    """Return an identity whose certificate `between` has issued, with the chain up to `authority`."""
    identity = make_identity(between, name, trusts=authority)
    return replace(identity, certificate=identity.certificate + between.pem)
