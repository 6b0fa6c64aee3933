"""``trilateral certs``: keys, certificates for a trial, and signing requests."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from trilateral.cli.command import public_errors
from trilateral.common.base.errors import ConfigError
from trilateral.common.base.files import write_whole
from trilateral.common.base.roles import Role

app = typer.Typer(help="Make keys and certificates.", no_args_is_help=True)

OutOption = Annotated[
    Path, typer.Option("--out", metavar="DIR", help="Folder for the files. It is created if necessary.")
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
            _refuse_to_overwrite(out, DevelopmentFiles(out).all)
        try:
            write_development_files(out, names)
        except OSError as error:
            raise ConfigError(f"--out {out}: cannot be written: {error.strerror}") from error
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
            raise ConfigError(f"--out {out}: cannot be written: {error.strerror}") from error
        typer.echo(
            f"{key_file} is this organisation's private key. Keep it here and never give it to anyone.\n"
            f"1. Send {request_file} to the authority that all three organisations have agreed on.\n"
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


def _check_names(option: str, names: Sequence[str]) -> Sequence[str]:
    from trilateral.common.rpc.certificates import is_name

    for name in names:
        if not is_name(name):
            raise ConfigError(f"{option} {name:.40}: expected a host name or an address, such as guest.example.org")
    return names


def _refuse_to_overwrite(out: Path, paths: Iterable[Path]) -> None:
    for path in paths:
        if path.exists():
            raise ConfigError(
                f"--out {out}: {path.relative_to(out)} exists, and a key is never overwritten: choose a new folder"
            )
