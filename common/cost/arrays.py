"""Where a party's arrays lie: in memory while they fit, and in scratch space otherwise."""

from dataclasses import dataclass

from trilateral.common.base.roles import Role
from trilateral.common.cost.counting import Counting
from trilateral.common.cost.workload import Workload

NUMBER_BYTES = 8
"""A number of a table, a training column or a masked column."""
OWN_BYTES = 4
"""A number of this party's columns in the protocol on shares."""
CODE_BYTES = 2
"""The fine bin of a value in a bins job: a byte in the column, and one in the table of all columns."""


@dataclass(frozen=True)
class Arrays:
    """The peak sizes of a party's arrays, in bytes."""

    in_memory: int
    on_disk: int


def place_arrays(work: Workload, role: Role, memory_bytes: int) -> Arrays:
    """Place the arrays of a party in the order in which a job makes them.

    First come the numbers of the table, one array for each feature, and the training columns. Under `shares`, this
    party's columns as integers and the other's masked ones follow. Their room is set aside while the training columns
    are still there.

    Args:
        work: the sizes of the job.
        role: the party.
        memory_bytes: how much of the arrays may lie in memory: `scratch.memory_mb` in bytes.
    """
    rows, own = work.rows, work.columns[role]
    features = own - (role is Role.GUEST and work.job.intercept)
    n_in_memory = min(features, memory_bytes // (NUMBER_BYTES * rows))
    table = NUMBER_BYTES * rows * n_in_memory
    training = NUMBER_BYTES * rows * own
    fits = table + training <= memory_bytes
    in_memory = table + training * fits
    on_disk = NUMBER_BYTES * rows * (features - n_in_memory) + training * (not fits)
    if work.job.protocol == "paillier":
        return Arrays(in_memory, on_disk)
    # The table is gone from here on.
    integers, masked = OWN_BYTES * rows * own, NUMBER_BYTES * rows * (work.n_columns - own)
    used = training * fits
    integers_fit = used + integers <= memory_bytes
    used += integers * integers_fit
    masked_fit = used + masked <= memory_bytes
    rounding = training * (not fits) + integers * (not integers_fit)
    exchanged = integers * (not integers_fit) + masked * (not masked_fit)
    return Arrays(max(in_memory, used + masked * masked_fit), max(on_disk, rounding, exchanged))


def place_table(work: Counting, role: Role, memory_bytes: int) -> Arrays:
    """Place the arrays of a party in a bins job: the numbers of its table, and at the host the fine bins.

    Args:
        work: the sizes of the job.
        role: the party.
        memory_bytes: how much of the numbers may lie in memory.
    """
    features = work.features[role]
    n_in_memory = min(features, memory_bytes // (NUMBER_BYTES * work.rows))
    codes = CODE_BYTES * work.rows * features * (role is Role.HOST)
    return Arrays(NUMBER_BYTES * work.rows * n_in_memory + codes, NUMBER_BYTES * work.rows * (features - n_in_memory))
