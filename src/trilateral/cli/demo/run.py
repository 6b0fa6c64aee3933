"""The demo from start to end."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Literal

from rich.console import Console

from trilateral.cli.demo.report import print_report
from trilateral.cli.follow import DetachedError, follow_job
from trilateral.cli.wording import command_line
from trilateral.common.base.errors import TrilateralError
from trilateral.common.base.progress import duration
from trilateral.common.base.roles import Role
from trilateral.demo import Demo
from trilateral.demo.files import JOB, DemoFiles


def run_demo(folder: Path, key_bits: int, algorithm: Literal["lbfgs", "sqn", "sgd"]) -> None:
    """Train in three processes under both protocols, and print the result.

    Raises:
        ConfigError: the size of the key is not possible, or the folder cannot be used.
        TrilateralError: the training failed. The text ends with the last lines of each log.
    """
    progress = Console(stderr=True)
    demo = Demo(folder, key_bits=key_bits, algorithm=algorithm)
    progress.print(
        f"569 patients, 15 columns at each party; all files are in {folder}", highlight=False, soft_wrap=True
    )
    with _ended_by_signals():
        try:
            with demo:
                seconds = _train(demo, progress)
        except TrilateralError as error:
            # Some errors take other arguments than a text.
            raise TrilateralError(f"{error}\n{demo.log_tails()}") from error
    print_report(demo.files, seconds, Console())
    _print_way_on(demo.files, Console())


def _train(demo: Demo, progress: Console) -> dict[str, float]:
    """Train under both protocols; return the seconds of each job by its name."""
    seconds = {}
    for job in (demo.job, demo.job_on_shares):
        try:
            final = follow_job(demo.guest, job, progress, patience=0)
        except DetachedError:
            raise KeyboardInterrupt from None
        progress.print(
            f"{job.protocol}: trained in {duration(final.seconds)}, {final.round} rounds; {final.detail}",
            highlight=False,
        )
        seconds[job.name] = final.seconds
    return seconds


def _print_way_on(files: DemoFiles, console: Console) -> None:
    configs = {role: path.absolute() for role, path in files.configs.items()}
    guest = ("--config", configs[Role.GUEST])
    by_hand = [command_line("serve", role, "--config", configs[role]) for role in Role]
    by_hand.append(command_line("train", files.job_by_hand.absolute(), *guest))
    report = command_line("report", JOB, *guest, "--out", files.folder.absolute() / "report.html")
    for title, commands in (
        ("To see charts of the first model, make a report and open it in a browser:", [report]),
        ("To do the same by hand, run each line in a terminal of its own:", by_hand),
    ):
        console.print(f"\n{title}", highlight=False, soft_wrap=True)
        for command in commands:
            console.print(f"  {command}", highlight=False, markup=False, soft_wrap=True)


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Stop the servers when the terminal closes or a `kill` arrives, as Ctrl-C does anyway."""

    def leave(number: int, frame: FrameType | None) -> None:
        del frame
        sys.exit(128 + number)

    before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
