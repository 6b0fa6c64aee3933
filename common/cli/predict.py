"""Having rows scored, at the guest."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from common.config.process import ProcessConfig
from common.roles import Role
from common.rpc.certificates import load_certificates
from common.rpc.channel import Peer, open_channel
from guest_party.prediction import Counts, Stage, Wanted, predict


def run_prediction(config: ProcessConfig, wanted: Wanted, console: Console) -> Counts:
    """Have rows scored, and show how far it is; see `predict`."""

    async def run(on_progress: Callable[[Stage], None]) -> Counts:
        certificates = load_certificates(config)
        identity = certificates.current() if certificates else None
        peer = config.peers[Role.HOST]
        async with open_channel(peer.address, identity, peer.certificate_name) as channel:
            return await predict(config, Peer(Role.HOST, peer.address, channel), wanted, on_progress)

    with _progress(console) as on_progress:
        return asyncio.run(run(on_progress))


@contextmanager
def _progress(console: Console) -> Iterator[Callable[[Stage], None]]:
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
