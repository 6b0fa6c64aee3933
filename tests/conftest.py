"""Settings for all tests."""

from hypothesis import settings

# Hypothesis' deadline is a timed assertion, which a busy machine breaks; pytest-timeout bounds a test that hangs.
settings.register_profile("trilateral", deadline=None)
settings.load_profile("trilateral")
