"""The three servers as processes on three hosts of a wide-area network."""

import socket
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast

from tests.support.forked import ForkedProcess
from tests.support.tcp_proxy import TcpProxy
from tests.support.three_processes import write_configs
from tests.support.wan import Wan
from trilateral.common.base.roles import Role
from trilateral.common.config.process import ProcessConfig
from trilateral.common.trial.localhost import LocalProcesses

PORT = 50050


def addresses_on(wan: Wan) -> dict[Role, str]:
    """Return the addresses at which the three servers listen."""
    return {role: f"{wan.address(role)}:{PORT}" for role in Role}


class ProcessesOnWan(LocalProcesses):
    """The three servers on the hosts that have the names of their roles.

    Args:
        wan: The network.
        configs: Configurations of the three, made for `addresses_on(wan)`.
        folder: Where configuration files and logs go.
    """

    def __init__(self, wan: Wan, configs: Mapping[Role, ProcessConfig], folder: Path) -> None:
        super().__init__(write_configs(configs, folder), {role: folder / f"{role}.log" for role in configs})
        self._wan = wan
        self._given = configs
        self._ways_in = {role: TcpProxy(lambda role=role: self._connect(role)) for role in configs}  # type: ignore[misc]

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            for proxy in self._ways_in.values():
                stack.enter_context(proxy)
            super().__enter__()
            self._entered = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with self._entered:
            super().__exit__(kind, error, traceback)

    def operator(self) -> ProcessConfig:
        """Return the guest's configuration for a client in this process, which runs on none of the hosts."""
        guest = self._given[Role.GUEST]
        address = self._ways_in[Role.COORDINATOR].address
        coordinator = guest.peers[Role.COORDINATOR].model_copy(update={"address": address})
        return guest.model_copy(update={"peers": {**guest.peers, Role.COORDINATOR: coordinator}})

    def _open_process(self, role: Role, command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
        process = ForkedProcess(command, namespace=self._wan.namespace(role), **options)
        return cast("subprocess.Popen[bytes]", process)

    def _config(self, role: Role) -> ProcessConfig:
        return self._given[role].model_copy(update={"listen": self._ways_in[role].address})

    def _connect(self, role: Role) -> socket.socket:
        """Connect from the host itself, which partitions between hosts do not affect."""
        sock = self._wan.socket_at(role)
        try:
            sock.connect((self._wan.address(role), PORT))
        except OSError:
            sock.close()
            raise
        return sock
