"""Writing settings that people will read and edit."""

from collections.abc import Mapping
from typing import Any

import yaml


def commented_yaml(comment: str, settings: Mapping[str, Any]) -> str:
    """Return settings as YAML in their own order, below a comment."""
    return f"# {comment}\n" + yaml.safe_dump(dict(settings), sort_keys=False)
