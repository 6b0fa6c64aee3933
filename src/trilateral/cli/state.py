"""Commands for the state folder of a process: ``trilateral backup``, ``restore`` and ``audit verify``."""

import re
from pathlib import Path
from typing import Annotated

import typer

from trilateral.cli.command import ConfigOption, public_errors
from trilateral.cli.json_output import JsonOption, print_json
from trilateral.common.base.errors import ConfigError, Counted, TrilateralError

TIME = "%Y-%m-%d %H:%M:%S UTC"


def backup(
    config: ConfigOption,
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="File to write. It must not exist.")],
) -> None:
    """Copy the state folder of a process, running or not, into one file that only this user can read."""
    from trilateral.common.config.load import load_process_config
    from trilateral.common.process.backup import back_up

    with public_errors():
        made = back_up(load_process_config(config), out)
        typer.echo(
            f"{out}: {Counted(len(made.files)):file|files} of the {made.role}'s state folder as of {made.time:{TIME}}\n"
            "The file is as secret as the tables: encrypt it before it leaves this machine."
        )


def restore(
    copy: Annotated[Path, typer.Argument(metavar="FILE", help="File that `trilateral backup` wrote.")],
    config: ConfigOption,
) -> None:
    """Put a copy in place of the state folder's content, while the process is stopped.

    The copy is checked first. What was in the folder is kept in a hidden folder inside it.
    """
    from trilateral.common.config.load import load_process_config
    from trilateral.common.process.backup import restore as put_back

    with public_errors():
        settings = load_process_config(config)
        done = put_back(settings, copy)
        made = f"{done.manifest.time:{TIME}}"
        typer.echo(
            f"{settings.state}: {Counted(len(done.manifest.files)):file|files} as of {made}, owned by {done.owner}"
        )
        if done.replaced is not None:
            typer.echo(f"the previous files are in {done.replaced}: remove this folder when you no longer need it")
        if done.undercounts:
            typer.echo(
                f"warning: this folder had no counts from after {made}. What this process disclosed since then is no "
                "longer counted: see docs/deployment.md, Backup",
                err=True,
            )
        for name in done.damaged:
            typer.echo(
                f"warning: {name} of the previous files is damaged, so what it counted after {made} is lost", err=True
            )
        for job, (before, now) in sorted(done.forgotten.items()):
            typer.echo(
                f"warning: job {job} had reached round {before}, and the copy ends at round {now}; see "
                "docs/deployment.md",
                err=True,
            )


audit = typer.Typer(help="Look after the audit log.", no_args_is_help=True)


@audit.callback()
def _audit() -> None:
    """Make `verify` a command of its own, although it is the only one."""


@audit.command()
def verify(
    config: ConfigOption,
    contains: Annotated[
        str | None,
        typer.Option(metavar="HASH", help="Hash of a line, as the process logged it, that the log must contain."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Check that no line of the audit log was changed, removed or inserted, and print the hash of the last line."""
    from trilateral.common.config.load import load_process_config
    from trilateral.common.observe.audit import LOG
    from trilateral.common.observe.audit_chain import verify_chain

    with public_errors():
        if contains is not None and not re.fullmatch("[0-9A-Fa-f]{64}", contains):
            raise ConfigError(f"--contains {contains}: expected 64 hexadecimal digits, as the process logs them")
        path = load_process_config(config).state / LOG
        try:
            found = verify_chain(path, None if contains is None else contains.lower())
        except ConfigError as error:
            # Exit code 2 means that the command itself was wrong.
            raise TrilateralError(str(error)) from error
        if as_json:
            ends = {"first": found.first, "last": found.end.number, "hash": found.end.digest or None}
            print_json({"log": path, **ends, "n_unchained": found.n_unchained, "n_repaired": found.n_repaired})
            return
        if found.n_unchained:
            typer.echo(f"{Counted(found.n_unchained):line has|lines have} no hash, because release 0.1.0 wrote them")
        if found.n_repaired:
            typer.echo(f"{Counted(found.n_repaired):line is|lines are} incomplete, as the line after each says")
        if found.first > 1:
            typer.echo(f"lines 1 to {found.first - 1} are not here: their files were moved away")
        if not found.first:
            typer.echo(f"{path} has no line with a hash yet")
        else:
            typer.echo(
                f"lines {found.first} to {found.end.number} are whole; the last has the hash\n{found.end.digest}"
            )
