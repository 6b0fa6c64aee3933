"""Server processes that start at once, because they are forked from a process that has imported everything.

They are separate processes with their own signals, files, and ports, and run the same command line that
`LocalProcesses` would start. Without the fork, the imports take seconds of processor time in each process.
"""

import multiprocessing
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from multiprocessing.context import ForkServerContext
from typing import Any, cast

from tests.support.namespaces import enter
from trilateral.common.base.roles import Role
from trilateral.common.trial.localhost import LocalProcesses

_PRELOAD = [
    "__main__",
    "trilateral.cli.main",
    "trilateral.coordinator.server",
    "trilateral.guest_party.server",
    "trilateral.host_party.server",
    "sklearn.metrics",
]


@cache
def _context() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOAD)
    return context


def _run(words: Sequence[str], output: str, environment: Mapping[str, str], namespace: str | None) -> None:
    os.setsid()  # Ctrl-C must reach only the program that started this one.
    if namespace is not None:
        enter(os.open(namespace, os.O_RDONLY | os.O_CLOEXEC))
    os.environ.clear()
    os.environ.update(environment)
    file = os.open(output, os.O_WRONLY | os.O_APPEND)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(file, stream.fileno())
    sys.argv[1:] = words
    from trilateral.cli.main import main

    main()


class ForkedProcess:
    """The parts of `subprocess.Popen` that `LocalProcesses` uses.

    Args:
        command: Command line that `LocalProcesses` makes.
        namespace: File of the network namespace to run in; None for the current one.
        options: Options of `subprocess.Popen`.
    """

    def __init__(self, command: Sequence[str], *, namespace: str | None = None, **options: Any) -> None:
        words = list(command[command.index("trilateral.cli.main") + 1 :])
        self._command = command
        self._process = _context().Process(target=_run, args=(words, options["stdout"].name, options["env"], namespace))
        self._process.start()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired(self._command, timeout or 0)
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        if self._process.exitcode is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self._process.terminate()

    def kill(self) -> None:
        self._process.kill()


class ForkedProcesses(LocalProcesses):
    """`LocalProcesses` that start at once."""

    def _open_process(self, role: Role, command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
        return cast("subprocess.Popen[bytes]", ForkedProcess(command, **options))
