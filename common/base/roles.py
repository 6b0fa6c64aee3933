"""The three roles, which the paper calls A (host), B (guest) and C (coordinator)."""

from enum import StrEnum


class Role(StrEnum):
    """The role of a process."""

    HOST = "host"
    GUEST = "guest"
    COORDINATOR = "coordinator"


PARTIES = (Role.HOST, Role.GUEST)
"""The roles that have data, in the order of their columns in every joint vector."""
