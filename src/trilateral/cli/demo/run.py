"""The demo from start to end."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from rich.console import Console

from trilateral.cli.demo.files import JOB, DemoFiles, write_files
from trilateral.cli.demo.report import print_report
from trilateral.cli.demo.tables import DATASET
from trilateral.cli.follow import DetachedError, follow_job, start_job
from trilateral.cli.program import command_line
from trilateral.cli.wording import duration
from trilateral.common.base.errors import TrilateralError
from trilateral.common.base.roles import Role
from trilateral.common.config.job import JobConfig
from trilateral.common.config.load import load_job, load_process_config
from trilateral.common.config.settings import parse_settings
from trilateral.common.trial.localhost import LocalProcesses, free_addresses


def run_demo(folder: Path, key_bits: int, algorithm: str) -> None:
    """Train in three processes and print what came of it.

    Raises:
        ConfigError: the key's size cannot be used, or the folder.
        TrilateralError: something failed; the text ends with the logs' last lines.
    """
    parse_settings(JobConfig, {"name": JOB, "dataset": DATASET, "key_bits": key_bits}, "demo")
    progress = Console(stderr=True)
    addresses = free_addresses()
    files = write_files(folder, addresses, key_bits, algorithm)
    progress.print(
        f"569 patients, 15 columns at each party; everything is in {folder}", highlight=False, soft_wrap=True
    )
    with _ended_by_signals():
        processes = LocalProcesses(files.configs, files.log_files)
        try:
            with processes:
                _train(files, progress)
        except TrilateralError as error:
            raise type(error)(f"{error}\n{processes.log_tails()}") from error
    print_report(files, Console())
    _print_way_on(files, Console())


def _train(files: DemoFiles, progress: Console) -> None:
    config = load_process_config(files.config(Role.GUEST), {})
    start_job(config, load_job(files.job))
    try:
        final = follow_job(config, JOB, progress)
    except DetachedError:
        raise KeyboardInterrupt from None
    progress.print(f"trained in {duration(final.seconds)}, {final.round} rounds; {final.detail}", highlight=False)


def _print_way_on(files: DemoFiles, console: Console) -> None:
    console.print(
        "\nThe same by hand, each in a terminal of its own:",
        highlight=False,
        soft_wrap=True,
    )
    configs = {role: path.absolute() for role, path in files.configs.items()}
    commands = [command_line("serve", role, "--config", configs[role]) for role in Role]
    commands.append(command_line("train", files.job_by_hand.absolute(), "--config", configs[Role.GUEST]))
    for command in commands:
        console.print(f"  {command}", highlight=False, markup=False, soft_wrap=True)


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Let a closed terminal or a `kill` leave no server behind, as Ctrl-C does by itself."""

    def leave(number: int, frame: FrameType | None) -> None:
        del frame
        sys.exit(128 + number)

    before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
