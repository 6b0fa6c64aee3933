"""Three servers on this machine: real processes, each with its configuration file and a log."""

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
"""Three interpreters that import numpy at once on a busy machine take their time."""
STOP_SECONDS = 10.0
TAIL_LINES = 15


def free_addresses() -> dict[Role, str]:
    """Return an address on this machine for each role, reserved until this process ends.

    Raises:
        ConfigError: see `free_address`.
    """
    return {role: free_address() for role in Role}


def process_settings(
    role: Role, addresses: Mapping[Role, str], states: Path = Path("state"), *, certificates: Path | None = None
) -> dict[str, Any]:
    """Return what every process's configuration says, fit for YAML; tables and policy are the caller's to add.

    Args:
        role: of the process.
        addresses: where all three listen.
        states: folder of the three state folders; a relative one is relative to the configuration file's folder.
        certificates: what `trilateral certs development` has made; None for plaintext.
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
    """Starts the three servers on entry and ends them on exit, whatever happens in between, SIGKILL included.

    Args:
        configs: each process's configuration file.
        logs: where each process's output goes.
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
        """Return the last lines of each log and where the whole is."""
        tails = []
        for role in Role:
            path = self._logs[role]
            lines = path.read_text(errors="replace").splitlines() if path.exists() else []
            tails.append("\n  ".join([f"{path}:", *lines[-TAIL_LINES:]]))
        return "\n".join(tails)

    def _start(self, role: Role) -> subprocess.Popen[bytes]:
        # A setting in the environment would override all three configurations at once.
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
            # A session of its own, so that Ctrl-C reaches this program alone, which then ends them in order.
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
        """`subprocess.Popen`, wherever the role's process is to run."""
        del role
        return subprocess.Popen(command, **options)  # noqa: S603 (our own program and file names)

    def _config(self, role: Role) -> ProcessConfig:
        """The process's configuration, for asking it whether it serves."""
        return load_process_config(self._configs[role], {})

    async def _wait_until_serving(self) -> None:
        await asyncio.gather(*(self._wait_for(role) for role in Role))

    async def _wait_for(self, role: Role) -> None:
        deadline = time.monotonic() + START_SECONDS
        config = self._config(role)
        while time.monotonic() < deadline:
            exit_code = self._processes[role].poll()
            if exit_code is not None:
                raise PeerError(f"the {role} ended at once, with exit code {exit_code}")
            with suppress(PeerError):
                await check_health(config, seconds=1)
                return
            await asyncio.sleep(0.1)
        raise PeerError(f"the {role} does not serve at {config.listen} after {START_SECONDS:.0f} s")

    def _stop(self) -> None:
        if self._guard is not None:
            # First, while the IDs that it knows are still those of the servers.
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
    """Start a shell that ends the processes once this program is gone, however it went.

    The shell waits for the end of its input, a pipe whose other end this program alone holds: the
    operating system closes it, even after a SIGKILL, in which nothing here can run.
    """
    command = ["/bin/sh", "-c", 'read -r _; kill "$@"', "sh", *map(str, pids)]
    return subprocess.Popen(  # noqa: S603 (our own command, and numbers)
        command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
