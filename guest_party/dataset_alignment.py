"""An alignment for its own sake: how many rows of a dataset both parties have."""

import asyncio
from dataclasses import dataclass

from trilateral.common.base.errors import ConfigError
from trilateral.common.config.process import ProcessConfig
from trilateral.common.data.alignment.guest_session import CommonShard
from trilateral.common.data.alignment.sources import MemoryIds
from trilateral.common.data.tables.table import read_table_ids
from trilateral.common.jobs.quota import IdQuota
from trilateral.common.protocol.alignment import AlignmentProgress
from trilateral.common.rpc.channel import Peer
from trilateral.guest_party.alignment import GuestAlignments
from trilateral.guest_party.stages import OnStage, Stage


@dataclass(frozen=True)
class DatasetAlignment:
    """Counts of IDs.

    Attributes:
        n_host: of the host in all.
        n_guest: of the guest in all.
        n_common: that both have.
        changed: of the guest's, how many each rule of the normal form has changed.
    """

    n_host: int
    n_guest: int
    n_common: int
    changed: dict[str, int]


async def align_dataset(
    config: ProcessConfig, host: Peer, name: str, on_stage: OnStage = lambda _: None
) -> DatasetAlignment:
    """Count the common IDs of a dataset. The host learns how many IDs the guest has, and nothing else.

    Args:
        config: of the guest.
        host: the peer.
        name: of the dataset, in both parties' configurations.
        on_stage: is told how far it is.

    Raises:
        TrilateralError: it cannot be done.
    """
    dataset = config.datasets.get(name)
    if dataset is None:
        raise ConfigError(f"datasets: has no {name}: there are {', '.join(sorted(config.datasets)) or 'none'}")
    on_stage(Stage("reading IDs", 0))
    normal = await asyncio.to_thread(read_table_ids, dataset)
    try:
        config.state.mkdir(mode=0o700, parents=True, exist_ok=True)  # for the counter of the host's IDs
    except OSError as error:
        raise ConfigError(f"state: the folder {config.state} cannot be written: {error.strerror}") from error

    def tell(progress: AlignmentProgress) -> None:
        on_stage(Stage("intersecting IDs", progress.done, progress.n_shards))

    async def count_alone(common: CommonShard) -> None:
        """The host is not told what is common."""
        del common

    alignments = GuestAlignments(host, config.limits, IdQuota(config.state, config.policy.max_ids_a_day))
    alignment = await alignments.open(name, MemoryIds(normal.ids), dataset.id_form)
    result = await alignment.run(count_alone, tell)
    return DatasetAlignment(result.n_host, result.n_guest, result.n_common, normal.changed)
