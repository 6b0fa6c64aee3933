"""``trilateral certs``: keys, signing requests, an authority that signs them, and certificates for a trial."""

import os
import sys
from collections.abc import Iterable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trilateral.cli.command import public_errors
from trilateral.cli.json_output import JsonOption, print_json
from trilateral.common.base.errors import ConfigError
from trilateral.common.base.files import write_whole
from trilateral.common.base.permissions import explain
from trilateral.common.base.roles import Role

if TYPE_CHECKING:
    from trilateral.common.trial.authority import Authority

VARIABLE = "TRILATERAL_AUTHORITY_PASSPHRASE"
MIN_PASSPHRASE = 8
AUTHORITY_CERTIFICATE, AUTHORITY_KEY = "authorities.pem", "authority-key.pem"
MAX_NAMES_SHOWN = 5
MAX_DAYS = 3650

app = typer.Typer(help="Make keys and certificates.", no_args_is_help=True)

OutOption = Annotated[
    Path, typer.Option("--out", metavar="DIR", help="Folder for the files. It is created if necessary.")
]
PassphraseOption = Annotated[
    Path | None,
    typer.Option(
        "--passphrase-file",
        metavar="FILE",
        help=f"File with the passphrase of the authority's key. Without it, the variable {VARIABLE} counts, "
        "or the command asks.",
    ),
]


@app.command()
def development(
    out: OutOption,
    host: Annotated[
        list[str] | None,
        typer.Option("--host", metavar="NAME", help="Another name or address for all three certificates."),
    ] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Replace the files of an earlier time.")] = False,
) -> None:
    """Make an authority and a certificate for each of the three roles, for a trial by one person.

    Each role gets a folder with its certificate, its key and the authority's certificate.

    Anyone who has these files can pose as any of the three roles. Real organisations use `certs request`.
    """
    from trilateral.common.trial.development import VALID, DevelopmentFiles, development_name, write_development_files

    with public_errors():
        names = _check_names("--host", host or [])
        if not replace:
            _refuse_to_overwrite(
                out, DevelopmentFiles(out).all, "choose a new folder, or replace all files of the trial with --replace"
            )
        try:
            write_development_files(out, names)
        except OSError as error:
            raise ConfigError(f"--out {out}: cannot be written: {explain(error, out)}") from error
        typer.echo(f"{out}: three certificates for {VALID.days} days, their keys, and the authority's certificate")
        for role in Role:
            typer.echo(f"  {role}/certificate.pem is for the name {development_name(role)}")


@app.command()
def request(
    name: Annotated[
        list[str], typer.Option("--name", metavar="NAME", help="Name by which the peers will know this organisation.")
    ],
    out: OutOption,
) -> None:
    """Make a private key and a request for its certificate."""
    from trilateral.common.rpc.issuers import fingerprint, spell
    from trilateral.common.trial.authority import key_pem, new_key, signing_request

    with public_errors():
        names = _check_names("--name", name)
        key_file, request_file = out / "key.pem", out / "request.pem"
        _refuse_to_overwrite(out, (key_file, request_file))
        key = new_key()
        try:
            write_whole(key_file, key_pem(key).decode())
            write_whole(request_file, signing_request(names, key).decode())
        except OSError as error:
            raise ConfigError(f"--out {out}: cannot be written: {explain(error, out)}") from error
        typer.echo(
            f"{key_file} is this organisation's private key. Keep it here and never give it to anyone.\n"
            f"1. Send {request_file} to the authority that all three organisations have agreed on, and compare the\n"
            "   fingerprint of the key with the authority by telephone:\n"
            f"   {spell(fingerprint(key.public_key()))}\n"
            "   The certificate must allow TLS servers and TLS clients (usages serverAuth and clientAuth).\n"
            f"2. Save the certificate that you get as {out / 'certificate.pem'}, and the authority's own certificate\n"
            f"   as {out / 'authorities.pem'}.\n"
            "3. Name the files in the configuration of this process:\n\n"
            "       tls:\n"
            f"         certificate: {out.absolute() / 'certificate.pem'}\n"
            f"         key: {key_file.absolute()}\n"
            f"         authorities: {out.absolute() / 'authorities.pem'}\n\n"
            f"4. Tell the other two organisations to set `name` to {names[0]} under `peers` in their configurations.\n"
            "To renew the certificate, repeat these steps in a new folder, and replace the old key and certificate.\n"
            "You need not restart the process."
        )


@app.command()
def authority(
    out: OutOption,
    name: Annotated[
        str, typer.Option("--name", metavar="TEXT", help="Name of the authority, which only people read.")
    ] = "trilateral authority",
    days: Annotated[int, typer.Option("--days", min=1, max=MAX_DAYS, help="How long the authority is valid.")] = 1095,
    passphrase_file: PassphraseOption = None,
) -> None:
    """Make an authority that signs the certificates of the three organisations.

    The folder gets the authority's certificate, which all three trust, and its key. Whoever has the key and its
    passphrase can pose as any of the three.
    """
    from trilateral.common.rpc.issuers import fingerprint, spell
    from trilateral.common.trial.authority import Authority

    with public_errors():
        if not 1 <= len(name) <= 64:
            raise ConfigError("--name: expected a text of 1 to 64 characters")
        certificate_file, key_file = out / AUTHORITY_CERTIFICATE, out / AUTHORITY_KEY
        _refuse_to_overwrite(out, (certificate_file, key_file))
        passphrase = _passphrase(passphrase_file, is_new=True)
        made = Authority(name, timedelta(days=days))
        try:
            write_whole(key_file, made.encrypted_key(passphrase).decode())
            write_whole(certificate_file, made.pem.decode(), mode=0o644)
        except OSError as error:
            raise ConfigError(f"--out {out}: cannot be written: {explain(error, out)}") from error
        typer.echo(
            f"{key_file} is the authority's key, with a passphrase. Keep both where no process of trilateral runs.\n"
            f"{certificate_file} is its certificate, valid until {made.certificate.not_valid_after_utc:%Y-%m-%d}. Give "
            "it to all three\norganisations, and compare the fingerprint of its key by telephone:\n"
            f"   {spell(fingerprint(made.certificate.public_key()))}\n"
            f"Sign their requests with: trilateral certs sign REQUEST --authority {out} --name NAME --out FILE"
        )


@app.command()
def sign(
    request_file: Annotated[Path, typer.Argument(metavar="REQUEST", help="Request that an organisation has sent.")],
    *,
    folder: Annotated[
        Path, typer.Option("--authority", metavar="DIR", help="Folder that `certs authority` has written.")
    ],
    name: Annotated[
        list[str],
        typer.Option(
            "--name", metavar="NAME", help="Name that the organisations have agreed on, whatever is requested."
        ),
    ],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="File for the certificate.")],
    days: Annotated[int, typer.Option("--days", min=1, max=MAX_DAYS, help="How long the certificate is valid.")] = 365,
    passphrase_file: PassphraseOption = None,
) -> None:
    """Sign an organisation's request.

    Only the key is taken from the request. The certificate has the names that you type, may not sign other
    certificates, and serves for TLS servers and clients.
    """
    from trilateral.common.rpc.issuers import fingerprint, spell
    from trilateral.common.trial.authority import read_request, requested

    with public_errors():
        names = _check_names("--name", name)
        if out.exists():
            raise ConfigError(f"--out {out}: exists: choose a new file")
        try:
            request = read_request(_read(request_file, "REQUEST"))
        except ValueError as error:
            raise ConfigError(f"{request_file} {error}") from None
        issuer = _load_authority(folder, _passphrase(passphrase_file), timedelta(days=days))
        pem = issuer.sign(request, names)
        try:
            write_whole(out, pem.decode(), mode=0o644)
        except OSError as error:
            raise ConfigError(f"--out {out}: cannot be written: {explain(error, out)}") from error
        asked, wants_to_sign = requested(request)
        if set(asked) != {each.lower() for each in names}:
            typer.echo(f"note: the request asks for other names, which do not count: {_listed(asked)}", err=True)
        if wants_to_sign:
            typer.echo(
                "warning: the request asks for the right to sign certificates, which the certificate does not give: "
                "ask its sender why",
                err=True,
            )
        typer.echo(
            f"{out} is for {', '.join(names)}\n"
            "Before you send it, compare the fingerprint of its key with the organisation by telephone. The "
            "organisation sees it\nwith `trilateral certs show`:\n"
            f"   {spell(fingerprint(request.public_key()))}"
        )


@app.command()
def show(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Certificates or a signing request, in PEM.")],
    as_json: JsonOption = False,
) -> None:
    """Show the names, dates and key fingerprints of certificates or of a request."""
    from cryptography import x509
    from cryptography.exceptions import UnsupportedAlgorithm

    from trilateral.common.rpc.certificates import subject_names
    from trilateral.common.rpc.issuers import fingerprint, may_sign, spell
    from trilateral.common.trial.authority import read_request

    with public_errors():
        pem = _read(file, "FILE")
        if b"CERTIFICATE REQUEST" in pem:
            try:
                request = read_request(pem)
            except ValueError as error:
                raise ConfigError(f"{file} {error}") from None
            if as_json:
                key = spell(fingerprint(request.public_key()))
                print_json({"certificates": [], "request": {"names": subject_names(request), "key": key}})
                return
            typer.echo(f"request for {_listed(subject_names(request))}")
            typer.echo(f"  key   {spell(fingerprint(request.public_key()))}")
            return
        try:
            certificates = [(each, fingerprint(each.public_key())) for each in x509.load_pem_x509_certificates(pem)]
        except (ValueError, UnsupportedAlgorithm):
            raise ConfigError(f"{file} is neither certificates nor a signing request in PEM") from None
        if as_json:
            shown = [
                {
                    "is_authority": may_sign(certificate),
                    "names": subject_names(certificate),
                    "valid_from": certificate.not_valid_before_utc,
                    "valid_until": certificate.not_valid_after_utc,
                    "key": spell(digits),
                }
                for certificate, digits in certificates
            ]
            print_json({"certificates": shown, "request": None})
            return
        for certificate, digits in certificates:
            kind = "authority" if may_sign(certificate) else f"certificate for {_listed(subject_names(certificate))}"
            begins, expires = certificate.not_valid_before_utc, certificate.not_valid_after_utc
            typer.echo(f"{kind}, valid from {begins:%Y-%m-%d} to {expires:%Y-%m-%d}")
            typer.echo(f"  key   {spell(digits)}")


def _read(path: Path, what: str, *, private: bool = False) -> bytes:
    from trilateral.common.rpc.certificates import read_file

    return read_file(f"{what} {path}", path, forbidden=0o077 if private else 0)


def _listed(names: Sequence[str]) -> str:
    if not names:
        return "no name"
    more = len(names) - MAX_NAMES_SHOWN
    return ", ".join(names[:MAX_NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _load_authority(folder: Path, passphrase: bytes, valid: timedelta) -> "Authority":
    from trilateral.common.trial.authority import Authority

    certificate = _read(folder / AUTHORITY_CERTIFICATE, "--authority")
    key = _read(folder / AUTHORITY_KEY, "--authority")
    try:
        return Authority.load(certificate, key, passphrase, valid)
    except ValueError as error:
        raise ConfigError(f"--authority {folder}: {error}") from None


def _passphrase(file: Path | None, *, is_new: bool = False) -> bytes:
    """Return the passphrase from a file, from the environment, or from the terminal."""
    if file is not None:
        text = _read(file, "--passphrase-file", private=True).decode(errors="surrogateescape").rstrip("\r\n")
        source = f"--passphrase-file {file}"
    elif VARIABLE in os.environ:
        text, source = os.environ[VARIABLE], VARIABLE
    elif sys.stdin.isatty():
        text = typer.prompt("Passphrase of the authority's key", hide_input=True, confirmation_prompt=is_new, err=True)
        source = "passphrase"
    else:
        raise ConfigError(f"there is no terminal to ask for the passphrase: set {VARIABLE}, or use --passphrase-file")
    if len(text) < MIN_PASSPHRASE:
        raise ConfigError(f"{source}: expected a passphrase of at least {MIN_PASSPHRASE} characters")
    return text.encode(errors="surrogateescape")


def _check_names(option: str, names: Sequence[str]) -> Sequence[str]:
    from trilateral.common.rpc.certificates import is_name

    for name in names:
        if not is_name(name):
            raise ConfigError(f"{option} {name:.40}: expected a host name or an address, such as guest.example.org")
    return names


def _refuse_to_overwrite(
    out: Path, paths: Iterable[Path], way_out: str = "a key is never overwritten: choose a new folder"
) -> None:
    for path in paths:
        if path.exists():
            raise ConfigError(f"--out {out}: {path.relative_to(out)} exists: {way_out}")
