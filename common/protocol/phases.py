"""An interface for timing: state machines name each kind of work, and the process around them may time it."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

Phase = Callable[[str], AbstractContextManager[None]]
"""``with phase("encrypt"): ...`` around each kind of work."""


def no_phase(name: str) -> AbstractContextManager[None]:
    """Time nothing."""
    del name
    return nullcontext()
