"""An alignment without a job: the number of IDs of a dataset that both parties hold."""

import asyncio
from dataclasses import dataclass

from trilateral.common.base.errors import ConfigError
from trilateral.common.base.permissions import explain
from trilateral.common.base.roles import Role
from trilateral.common.config.process import ProcessConfig
from trilateral.common.data.alignment.guest_session import CommonShard
from trilateral.common.data.alignment.sources import MemoryIds
from trilateral.common.data.tables.id_form import form_of
from trilateral.common.data.tables.table import read_table_ids
from trilateral.common.jobs.quota import IdQuota
from trilateral.common.protocol.alignment import AlignmentProgress
from trilateral.common.rpc.calls import first_contact
from trilateral.common.rpc.channel import Peer
from trilateral.guest_party.alignment import GuestAlignments, OnStage, Stage


@dataclass(frozen=True)
class DatasetAlignment:
    """Numbers of IDs of a dataset.

    Attributes:
        n_host: IDs at the host.
        n_guest: IDs at the guest.
        n_common: IDs that both parties hold.
        changed: for each rule of `id_form`, how many of the guest's IDs it changed.
    """

    n_host: int
    n_guest: int
    n_common: int
    changed: dict[str, int]


async def align_dataset(
    config: ProcessConfig, host: Peer, name: str, on_stage: OnStage = lambda _: None
) -> DatasetAlignment:
    """Count the IDs that both parties hold. The host learns how many IDs the guest has, and nothing else.

    Args:
        config: configuration of the guest.
        host: the host.
        name: name of the dataset in the configurations of both parties.
        on_stage: called with each stage of the work.

    Returns:
        The numbers of IDs.

    Raises:
        ConfigError: the guest has no such dataset, or its state folder cannot be written.
        TrilateralError: a table cannot be used, a policy refuses, or the host does not answer.
    """
    dataset = config.datasets.get(name)
    if dataset is None:
        known = ", ".join(sorted(config.datasets)) or "no datasets"
        raise ConfigError(f"datasets: there is no dataset named {name}: the configuration has {known}")
    await first_contact(host, Role.GUEST, config.limits)
    on_stage(Stage("reading IDs", 0))
    normal = await asyncio.to_thread(read_table_ids, dataset)
    try:
        config.state.mkdir(mode=0o700, parents=True, exist_ok=True)  # for the quota of the host's IDs
    except OSError as error:
        raise ConfigError(
            f"state: the folder {config.state} cannot be written: {explain(error, config.state)}"
        ) from error

    def report(progress: AlignmentProgress) -> None:
        on_stage(Stage("intersecting IDs", progress.done, progress.n_shards))

    async def keep_secret(common: CommonShard) -> None:
        """Do not tell the host which IDs are common."""
        del common

    quota = IdQuota.of(config)
    alignments = GuestAlignments(host, config.limits, lambda: quota)
    alignment = await alignments.open(name, MemoryIds(normal.ids), form_of(dataset))
    result = await alignment.run(keep_secret, report)
    return DatasetAlignment(result.n_host, result.n_guest, result.n_common, normal.changed)
