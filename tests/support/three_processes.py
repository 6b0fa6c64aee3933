"""The three servers as separate processes, with a key and a log level that the test chooses."""

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import yaml

from trilateral.common.base.roles import Role
from trilateral.common.config.process import ProcessConfig
from trilateral.common.paillier.keys import PrivateKey
from trilateral.common.trial.localhost import LocalProcesses

# Like `trilateral serve`, except that the coordinator gets its key instead of generating one.
PROGRAM = """
import sys
import trilateral.coordinator.jobs
from trilateral.cli.main import main
from trilateral.common.paillier.keys import PrivateKey
p, q = int(sys.argv.pop()), int(sys.argv.pop())
trilateral.coordinator.jobs.generate_private_key = lambda bits: PrivateKey(p, q)
main()
"""


def write_configs(configs: Mapping[Role, ProcessConfig], folder: Path) -> dict[Role, Path]:
    """Write the configurations, and return the files."""
    paths = {role: folder / f"{role}.yaml" for role in configs}
    for role, config in configs.items():
        paths[role].write_text(yaml.safe_dump(config.model_dump(mode="json", exclude_unset=True)))
    return paths


class KnownProcesses(LocalProcesses):
    """Three servers whose key the test knows, with `options` of `trilateral serve`; `logs` has their output."""

    def __init__(self, configs: Mapping[Role, ProcessConfig], folder: Path, key: PrivateKey, *options: str) -> None:
        self.logs = {role: folder / f"{role}.log" for role in configs}
        self._paths = write_configs(configs, folder)
        self._key = key
        self._options = options
        super().__init__(self._paths, self.logs)

    def _start(self, role: Role) -> subprocess.Popen[bytes]:
        words = ["serve", role, "--config", str(self._paths[role]), *self._options]
        command = [sys.executable, "-c", PROGRAM, *words, str(self._key.q), str(self._key.p)]
        with self.logs[role].open("wb") as log:
            return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
