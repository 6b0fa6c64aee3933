"""How a command ends: errors as lines for people, and exit codes."""

import os
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from trilateral.common.base.errors import ConfigError, TrilateralError, notes

FAILED = 1
BAD_CONFIGURATION = 2
INTERRUPTED = 130
"""As shells report a command that an interrupt has ended."""


@contextmanager
def public_errors() -> Iterator[None]:
    """Turn an error into a line for people and an exit code; with --debug a traceback comes first."""
    try:
        yield
    except (typer.Exit, typer.Abort):
        raise
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    except Exception as error:
        if os.environ.get("TRILATERAL_DEBUG"):
            traceback.print_exc()
        if isinstance(error, TrilateralError):
            text = str(error)
        else:
            text = f"this should not happen: {type(error).__name__}: {error}; more with: trilateral --debug"
        for line in text.split("\n"):
            # What is indented belongs to the line above it.
            typer.echo(line if line.startswith(" ") else f"error: {line}", err=True)
        for note in notes(error):
            typer.echo(f"  {note}", err=True)
        raise typer.Exit(BAD_CONFIGURATION if isinstance(error, ConfigError) else FAILED) from None
