"""A job that has ended leaves only its status in memory; `tests.faults.soak` checks the same over 200 jobs."""

import gc
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.faults.soak import JOB, run_job
from tests.support.three_servers import PROTOCOLS, Protocol, make_configs, serving, under, write_tables
from tests.support.waiting import eventually
from trilateral.common.base.roles import Role
from trilateral.common.jobs.links import Link
from trilateral.common.jobs.runner import MachineRunner
from trilateral.common.paillier.keys import PrivateKey
from trilateral.common.pb.v1.jobs_pb2 import JOB_STATE_FAILED, JOB_STATE_FINISHED, JOB_STATE_STOPPED
from trilateral.coordinator.machine import CoordinatorMachine
from trilateral.guest_party.machine import GuestMachine
from trilateral.host_party.machine import HostMachine

pytestmark = pytest.mark.no_cover
"""These are ordinary jobs, whose code other tests cover. They take longer while coverage is measured."""

HELD = (MachineRunner, Link, PrivateKey, CoordinatorMachine, GuestMachine, HostMachine)
CHANGES: list[dict[str, Any]] = [{"epochs": 1}, {"epochs": 500}, {"dataset": "absent"}]


def alive() -> Counter[str]:
    gc.collect()
    return Counter(type(one).__name__ for one in gc.get_objects() if isinstance(one, HELD))


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_dozen_jobs_leave_no_machine_no_key_and_no_descriptor(protocol: Protocol, tmp_path: Path) -> None:
    write_tables(tmp_path)
    configs = make_configs(tmp_path)
    before = alive()
    states, descriptors = [], []
    async with serving(configs):
        for number in range(12):
            job = under(protocol, JOB.model_copy(update={"name": f"job-{number}", **CHANGES[number % 3]}))
            states.append((await run_job(configs[Role.GUEST], job, stop=number % 3 == 1)).state)
            descriptors.append(len(os.listdir("/dev/fd")))
        # The parties exchange a few last messages, and gRPC closes the last connection of a client a moment later.
        await eventually(lambda: not alive() - before)
        await eventually(lambda: len(os.listdir("/dev/fd")) <= descriptors[2])

    assert states == 4 * [JOB_STATE_FINISHED, JOB_STATE_STOPPED, JOB_STATE_FAILED]
