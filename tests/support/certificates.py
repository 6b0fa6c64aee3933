"""Valid and invalid certificates for tests."""

from datetime import datetime, timedelta
from pathlib import Path

from cryptography.x509 import load_pem_x509_certificate

from trilateral.common.base.files import write_whole
from trilateral.common.config.process import TlsConfig
from trilateral.common.rpc.certificates import Identity
from trilateral.common.trial.authority import Authority, key_pem, new_key


def new_authority() -> Authority:
    return Authority("tests", timedelta(days=1))


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
