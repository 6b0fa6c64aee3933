"""Text for people: numbers, and commands to type."""

import shlex
import sys
from pathlib import Path


def decimal(value: float, decimals: int) -> str:
    """Return a number with this many decimals; a huge one, such as a diverging loss, in scientific notation.

    A number that rounds to zero has no sign.
    """
    return f"{value:z.{decimals}f}" if abs(value) < 1e6 else f"{value:.{decimals}g}"


def in_statsmodels(value: float, decimals: int) -> str:
    """Return a number as the tables of statsmodels print it: very small and large ones have significant digits."""
    return f"{value:.{decimals}f}" if 1e-4 <= abs(value) < 1e4 else f"{value:.{decimals}g}"


def command_line(*arguments: object) -> str:
    """Return a command of this program. It has the program's path, so that it works in every terminal."""
    program = Path(sys.executable).with_name("trilateral")
    words = [str(program)] if program.exists() else [sys.executable, "-m", "trilateral.cli.main"]
    return shlex.join([*words, *map(str, arguments)])
