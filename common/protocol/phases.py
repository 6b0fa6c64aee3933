"""A seam for timing: state machines name their work, and the process around them may have a clock."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

Phase = Callable[[str], AbstractContextManager[None]]
"""``with phase("encrypt"): ...`` around each kind of work."""


def no_phase(name: str) -> AbstractContextManager[None]:
    """Time nothing."""
    del name
    return nullcontext()
