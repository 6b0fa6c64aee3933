"""Three servers on this machine: real processes, each with its own configuration file and log."""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from trilateral.common.base.errors import PeerError
from trilateral.common.base.roles import Role
from trilateral.common.config.load import ENVIRONMENT_PREFIX, NOT_SETTINGS, load_process_config
from trilateral.common.config.process import ProcessConfig
from trilateral.common.process.health import check_health
from trilateral.common.trial.development import DevelopmentFiles, development_name
from trilateral.common.trial.ports import free_address

START_SECONDS = 60.0
"""How long to wait for the servers. Three interpreters that import numpy at once on a busy machine can be slow."""
STOP_SECONDS = 10.0
"""How long a server may take to stop before it is killed."""
TAIL_LINES = 15
"""Lines of each log that `LocalProcesses.log_tails` returns."""


def free_addresses() -> dict[Role, str]:
    """Return an address on this machine for each role, reserved until this process ends.

    Raises:
        ConfigError: see `free_address`.
    """
    return {role: free_address() for role in Role}


def process_settings(
    role: Role, addresses: Mapping[Role, str], states: Path = Path("state"), *, certificates: Path | None = None
) -> dict[str, Any]:
    """Build the configuration of a process without tables and policy, as plain values for YAML.

    Args:
        role: the role of the process.
        addresses: the addresses of all three processes.
        states: the parent of the three state folders. A relative path starts at the folder of the configuration file.
        certificates: the folder that `trilateral certs development` has filled; None for plaintext.
    """
    others = {str(other): address for other, address in addresses.items() if other is not role}
    if certificates is None:
        security: dict[str, Any] = {"plaintext": True}
        peers: dict[str, Any] = others
    else:
        security = {"tls": DevelopmentFiles(certificates).settings(role)}
        peers = {other: {"address": address, "name": development_name(other)} for other, address in others.items()}
    return {
        "role": str(role),
        **security,
        "listen": addresses[role],
        "peers": peers,
        "state": str(states / role),
    }


class LocalProcesses:
    """A context manager that starts the three servers and stops them on exit, even if this program is killed.

    Args:
        configs: the configuration file of each process.
        logs: the file for the output of each process.

    Raises:
        PeerError: on entry, if a server ends or does not serve in time.
    """

    def __init__(self, configs: Mapping[Role, Path], logs: Mapping[Role, Path]) -> None:
        self._configs = configs
        self._logs = logs
        self._processes: dict[Role, subprocess.Popen[bytes]] = {}
        self._guard: subprocess.Popen[bytes] | None = None

    @property
    def pids(self) -> dict[Role, int]:
        """Process IDs, once started."""
        return {role: process.pid for role, process in self._processes.items()}

    def __enter__(self) -> Self:
        try:
            for role in Role:
                self._logs[role].unlink(missing_ok=True)
                self._processes[role] = self._start(role)
            self._guard = _end_with_this_program(self.pids.values())
            asyncio.run(self._wait_until_serving())
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop()

    def log_tails(self) -> str:
        """Return the path and the last lines of each log."""
        tails = []
        for role in Role:
            path = self._logs[role]
            lines = path.read_text(errors="replace").splitlines() if path.exists() else []
            tails.append("\n  ".join([f"{path}:", *lines[-TAIL_LINES:]]))
        return "\n".join(tails)

    def _start(self, role: Role) -> subprocess.Popen[bytes]:
        # Environment variables with settings would override all three configurations at once.
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(ENVIRONMENT_PREFIX) or name in NOT_SETTINGS
        }
        command = [
            sys.executable,
            "-m",
            "trilateral.cli.main",
            "serve",
            str(role),
            "--config",
            str(self._configs[role]),
        ]
        with self._logs[role].open("ab") as log:
            # In a session of its own, so that Ctrl-C reaches only this program, which then stops the servers in order.
            return self._open_process(
                role,
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )

    def _open_process(self, role: Role, command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
        """Start a process. Subclasses may start it elsewhere, depending on the role."""
        del role
        return subprocess.Popen(command, **options)  # noqa: S603 (our own program and file names)

    def _config(self, role: Role) -> ProcessConfig:
        """Load the configuration of a process, for its health check."""
        return load_process_config(self._configs[role], {})

    async def _wait_until_serving(self) -> None:
        await asyncio.gather(*(self._wait_for(role) for role in Role))

    async def _wait_for(self, role: Role) -> None:
        deadline = time.monotonic() + START_SECONDS
        config = self._config(role)
        while time.monotonic() < deadline:
            exit_code = self._processes[role].poll()
            if exit_code is not None:
                raise PeerError(f"the {role} ended during its start with exit code {exit_code}")
            with suppress(PeerError):
                await check_health(config, seconds=1)
                return
            await asyncio.sleep(0.1)
        raise PeerError(f"the {role} does not serve at {config.listen} after {START_SECONDS:.0f} s")

    def _stop(self) -> None:
        if self._guard is not None:
            # Stop the guard first, while its process IDs still belong to the servers.
            self._guard.kill()
            self._guard.communicate()
        for process in self._processes.values():
            process.terminate()
        for process in self._processes.values():
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _end_with_this_program(pids: Iterable[int]) -> subprocess.Popen[bytes]:
    """Start a shell that ends the processes as soon as this program has ended, for whatever reason.

    The shell waits for the end of its input, a pipe whose other end only this program holds. The operating system
    closes the pipe even after a SIGKILL, when no code of this program can run.
    """
    command = ["/bin/sh", "-c", 'read -r _; kill "$@"', "sh", *map(str, pids)]
    return subprocess.Popen(  # noqa: S603 (our own command, and numbers)
        command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
