"""What all settings have in common."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

JOB_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
JobName = Annotated[str, Field(pattern=JOB_NAME)]
"""Fit for the name of a file."""


class Settings(BaseModel):
    """Frozen, and an unknown key is an error: a misspelt option must not pass in silence."""

    model_config = ConfigDict(frozen=True, extra="forbid")
