"""``trilateral certs``: keys, and certificates for a trial or what to have one issued with."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from trilateral.cli.errors import public_errors
from trilateral.common.base.errors import ConfigError
from trilateral.common.base.files import write_whole
from trilateral.common.base.roles import Role

app = typer.Typer(help="Make keys and certificates.", no_args_is_help=True)

OutOption = Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder for the files, made if it is not there.")]


@app.command()
def development(
    out: OutOption,
    host: Annotated[
        list[str] | None,
        typer.Option("--host", metavar="NAME", help="A further name or address, in all three certificates."),
    ] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Put new ones in the place of those that are there.")
    ] = False,
) -> None:
    """Make an authority and a certificate for each of the three, for a trial by one person.

    Each of the three has a folder of its own with its certificate, its key and the authority's certificate.

    Who has the files can pretend to be any of the three. Real organisations use `certs request`.
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
        typer.echo(f"{out} has three certificates for {VALID.days} days, their keys, and the authority's certificate")
        for role in Role:
            typer.echo(f"  {role}/certificate.pem is named {development_name(role)}")


@app.command()
def request(
    name: Annotated[
        list[str], typer.Option("--name", metavar="NAME", help="What the peers will know this organisation by.")
    ],
    out: OutOption,
) -> None:
    """Make a key that stays here, and a request to have its certificate issued."""
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
            f"{key_file} is this organisation's private key: it stays here, and nobody else ever needs it.\n"
            f"1. Send {request_file} to the authority that all three organisations have agreed on.\n"
            "   The certificate must be good for TLS servers and for clients (usages serverAuth and clientAuth).\n"
            f"2. Save what comes back as {out / 'certificate.pem'}, and the authority's own certificate as\n"
            f"   {out / 'authorities.pem'}.\n"
            "3. Name the files in this process's configuration:\n\n"
            "       tls:\n"
            f"         certificate: {out.absolute() / 'certificate.pem'}\n"
            f"         key: {key_file.absolute()}\n"
            f"         authorities: {out.absolute() / 'authorities.pem'}\n\n"
            f"4. Tell the other two the name {names[0]}, for `name` under `peers` in their configurations.\n"
            "To renew, do the same with a new folder, and put the new key and certificate in the place of the old.\n"
            "Nothing need be restarted."
        )


def _check_names(option: str, names: Sequence[str]) -> Sequence[str]:
    from trilateral.common.rpc.certificates import is_name

    for name in names:
        if not is_name(name):
            raise ConfigError(f"{option} {name:.40}: expected a host's name or address, such as guest.example.org")
    return names


def _refuse_to_overwrite(out: Path, paths: Iterable[Path]) -> None:
    for path in paths:
        if path.exists():
            raise ConfigError(
                f"--out {out}: has {path.relative_to(out)} already, and a key is not replaced: choose a new folder"
            )
