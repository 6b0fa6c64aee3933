"""How far the guest is with something that takes long."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Stage:
    """What it is doing, for people, and how much of it is done; the total is unknown while tables are read."""

    doing: str
    done: int
    total: int | None = None


OnStage = Callable[[Stage], None]
