"""What the commands share: options, how errors look, and exit codes."""

import os
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path
from typing import Annotated

import typer

from trilateral.common.base.errors import ConfigError, TrilateralError, notes
from trilateral.common.base.permissions import explain


class ExitCode(IntEnum):
    """How a command ended. `docs/commands.md` has the table."""

    SUCCESS = 0
    FAILED = 1
    BAD_CONFIGURATION = 2
    LOST_CONTACT = 3
    """The job continues, but the coordinator no longer reports on it."""
    NOTHING_SCORED = 4
    INTERRUPTED = 130
    """As shells report a command that Ctrl-C has ended."""


ConfigOption = Annotated[
    Path, typer.Option("--config", metavar="FILE", help="Configuration of your own organisation's process.")
]
JobArgument = Annotated[str, typer.Argument(metavar="JOB", help="Name of the job.")]


@contextmanager
def public_errors() -> Iterator[None]:
    """Turn an exception into error lines and an exit code. With --debug, print a traceback first."""
    try:
        yield
    except (typer.Exit, typer.Abort):
        raise
    except KeyboardInterrupt:
        raise typer.Exit(ExitCode.INTERRUPTED) from None
    except Exception as error:
        if os.environ.get("TRILATERAL_DEBUG"):
            traceback.print_exc()
        code = ExitCode.BAD_CONFIGURATION if isinstance(error, ConfigError) else ExitCode.FAILED
        if isinstance(error, TrilateralError):
            text = str(error)
        elif isinstance(error, OSError) and error.filename is not None:
            text = f"{error.filename}: {explain(error, Path(str(error.filename)))}"
            code = ExitCode.BAD_CONFIGURATION
        else:
            text = f"internal error: {type(error).__name__}: {error}; for details, run: trilateral --debug ..."
        for line in text.split("\n"):
            # An indented line continues the line above it.
            typer.echo(line if line.startswith(" ") else f"error: {line}", err=True)
        for note in notes(error):
            typer.echo(f"  {note}", err=True)
        raise typer.Exit(code) from None
