"""The Python API: a session with an organisation's own process, its jobs, and its part of a model."""
