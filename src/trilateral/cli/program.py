"""How this program is called, for commands that it tells people to type."""

import shlex
import sys
from pathlib import Path


def command_line(*arguments: object) -> str:
    """Return a command of this program that works in any terminal: by its path, since not every shell finds it."""
    program = Path(sys.executable).with_name("trilateral")
    words = [str(program)] if program.exists() else [sys.executable, "-m", "trilateral.cli.main"]
    return shlex.join([*words, *map(str, arguments)])
