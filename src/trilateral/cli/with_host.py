"""What the guest does with the host and no coordinator: a channel, and how far it is."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from trilateral.common.base.roles import Role
from trilateral.common.config.process import ProcessConfig
from trilateral.common.rpc.certificates import load_certificates
from trilateral.common.rpc.channel import Peer, open_channel
from trilateral.guest_party.stages import OnStage, Stage

T = TypeVar("T")


def run_with_host(config: ProcessConfig, work: Callable[[Peer, OnStage], Awaitable[T]], console: Console) -> T:
    """Open a channel to the guest's host, do the work, and show how far it is."""

    async def run(on_stage: OnStage) -> T:
        certificates = load_certificates(config)
        identity = certificates.current() if certificates else None
        peer = config.peers[Role.HOST]
        async with open_channel(peer.address, identity, peer.certificate_name) as channel:
            return await work(Peer(Role.HOST, peer.address, channel), on_stage)

    with _shown(console) as on_stage:
        return asyncio.run(run(on_stage))


@contextmanager
def _shown(console: Console) -> Iterator[OnStage]:
    """Yield what shows a stage: a bar on a terminal, a line for each new one elsewhere."""
    if not console.is_terminal:
        shown: list[str] = []

        def tell(stage: Stage) -> None:
            if stage.doing not in shown:
                shown.append(stage.doing)
                console.print(stage.doing, markup=False, highlight=False)

        yield tell
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=None)
        doing = ""

        def move(stage: Stage) -> None:
            nonlocal doing
            if stage.doing != doing:
                doing = stage.doing
                progress.reset(task, total=stage.total, description=doing)
            progress.update(task, completed=stage.done)

        yield move
