"""Settings for all tests."""

import gc

from hypothesis import settings

# Hypothesis' deadline is a timed assertion, which a busy machine breaks; pytest-timeout bounds a test that hangs.
settings.register_profile("trilateral", deadline=None)
settings.load_profile("trilateral")


def pytest_collection_finish() -> None:
    """Let garbage collections pass over the modules and thousands of tests, as `trilateral serve` does at its start.

    Each job ends with collections. With these objects, one would take a fifth of a second.
    """
    gc.collect()
    gc.freeze()
