"""What a peer's certificate must satisfy beyond gRPC's checks: who issued it, and which key it holds.

gRPC accepts a chain through any certificate that may sign others. An authority that signs such a certificate by mistake
lets its holder issue certificates for every name. Here each issuer must be in `tls.authorities` itself.
"""

from functools import lru_cache
from hashlib import sha256

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

MAX_CACHED = 256
"""Verified certificates to remember; a process sees those of its peers and operators."""


MIN_RSA_BITS, MAX_RSA_BITS, RSA_EXPONENT = 2048, 8192, 65537
KEYS = f"use RSA of {MIN_RSA_BITS} to {MAX_RSA_BITS} bits with exponent {RSA_EXPONENT}, P-256 or P-384"


def is_supported(key: CertificatePublicKeyTypes) -> bool:
    """Tell whether every TLS library here accepts a key from a peer.

    gRPC's library cannot load Ed448 keys and keys on other curves, and accepts neither Ed25519 nor P-521 from a peer.
    OpenSSL's default refuses small RSA keys.
    """
    match key:
        case rsa.RSAPublicKey():
            return MIN_RSA_BITS <= key.key_size <= MAX_RSA_BITS and key.public_numbers().e == RSA_EXPONENT
        case ec.EllipticCurvePublicKey():
            return isinstance(key.curve, ec.SECP256R1 | ec.SECP384R1)
        case _:
            return False


def fingerprint(key: CertificatePublicKeyTypes) -> str:
    """Return the SHA-256 of a public key's SubjectPublicKeyInfo, as 64 lower-case hexadecimal digits."""
    return sha256(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).hexdigest()


def spell(digits: str) -> str:
    """Return a fingerprint in groups of four digits, to compare by telephone."""
    return ":".join(digits[start : start + 4] for start in range(0, len(digits), 4))


@lru_cache(MAX_CACHED)
def is_directly_issued(certificate: bytes, authorities: bytes) -> bool:
    """Tell whether one of the authorities has signed the certificate itself, with no certificate in between.

    Results are cached, since every call of a job asks for the same few certificates.

    Args:
        certificate: the certificate in PEM; only the first one counts.
        authorities: certificates in PEM. One that may not sign certificates does not count.
    """
    try:
        leaf = x509.load_pem_x509_certificate(certificate)
        issuers = x509.load_pem_x509_certificates(authorities)
    except ValueError:
        return False
    return any(_has_issued(issuer, leaf) for issuer in issuers)


def may_sign(certificate: x509.Certificate) -> bool:
    """Tell whether a certificate is an authority's: its basic constraints permit it to sign certificates."""
    try:
        return certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except (x509.ExtensionNotFound, x509.DuplicateExtension, x509.UnsupportedGeneralNameType, ValueError):
        return False


def _has_issued(issuer: x509.Certificate, leaf: x509.Certificate) -> bool:
    try:
        leaf.verify_directly_issued_by(issuer)
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
        return False
    return may_sign(issuer)
