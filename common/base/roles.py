"""Who takes part. The paper's A, B and C."""

from enum import StrEnum


class Role(StrEnum):
    """One of the three processes."""

    HOST = "host"
    GUEST = "guest"
    COORDINATOR = "coordinator"


PARTIES = (Role.HOST, Role.GUEST)
"""Those who have data, in the order of their columns in every joint vector."""
