"""Settings for all tests."""

import gc
import os

import pytest
from hypothesis import settings

# Hypothesis' deadline is a timed assertion, which a busy machine breaks; pytest-timeout bounds a test that hangs.
settings.register_profile("trilateral", deadline=None)
settings.load_profile("trilateral")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Return one worker more than processors, because many tests wait for servers, and leave their processor idle."""
    return (os.cpu_count() or 1) + 1


def pytest_collection_finish() -> None:
    """Let garbage collections pass over the modules and thousands of tests, as `trilateral serve` does at its start.

    Each job ends with collections. With these objects, one would take a fifth of a second.
    """
    gc.collect()
    gc.freeze()
