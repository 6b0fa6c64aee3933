"""The fields of the JSON that commands print, as the documentation lists them."""

import re
from pathlib import Path

_PAGE = Path(__file__).parents[2] / "docs/json.md"


def documented_fields() -> dict[str, set[str]]:
    """The names in the row of each command."""
    rows = re.findall(r"^\| `([^`]+)` \| (.+) \|$", _PAGE.read_text(), re.MULTILINE)
    return {command: set(re.findall(r"`(\w+)`", text)) for command, text in rows}
