"""What all settings have in common."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

JobName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
"""Fit for the name of a file."""


class Settings(BaseModel):
    """Frozen, and an unknown key is an error: a misspelt option must not pass in silence."""

    model_config = ConfigDict(frozen=True, extra="forbid")
