"""Three organisations with the configurations of configs/three-hosts, each on its own host of a wide-area network.

`serving` runs the servers and commands as in an installation: each process starts afresh, resolves names, shows its
certificate, reads its table, and writes its model as on three machines.
"""

import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from tests.support.wan import ROOT, Wan
from trilateral.common.base.files import write_whole
from trilateral.common.base.roles import PARTIES, Role
from trilateral.common.config.job import JobConfig
from trilateral.common.config.load import load_process_config
from trilateral.common.config.process import ProcessConfig
from trilateral.common.data.party_data import make_block
from trilateral.common.data.tables.table import read_table
from trilateral.common.jobs.folder import JobFolder
from trilateral.common.trial.authority import Authority, key_pem, new_key
from trilateral.common.trial.development import VALID
from trilateral.coordinator.numpy_training import JoinedTable, join

THREE_HOSTS = ROOT / "configs/three-hosts"
DATASET = "customers"
"""Name of the table in configs/three-hosts."""
START_SECONDS = 120.0


class Organisations:
    """Three folders as on three machines: configuration, certificate, key, and table.

    Args:
        folder: Where the three folders go.
        tables: Tables of the parties, with a column `id`, and at the guest a column `label` with 1 or 0.
        policy: Settings of both parties' policies that replace those of configs/three-hosts.
    """

    def __init__(
        self, folder: Path, tables: Mapping[Role, pd.DataFrame], policy: Mapping[str, Any] | None = None
    ) -> None:
        self.configs = {role: folder / role / "process.yaml" for role in Role}
        self.names: dict[Role, str] = {}
        settings = {role: yaml.safe_load((THREE_HOSTS / role / "process.yaml").read_text()) for role in Role}
        authority = Authority("the authority of the three", VALID)
        for role in Role:
            other = next(each for each in Role if each is not role)
            self.names[role] = settings[other]["peers"][role]["name"]
            own, key = settings[role], new_key()
            for what, pem in {
                "certificate": authority.issue([self.names[role]], key),
                "key": key_pem(key),
                "authorities": authority.pem,
            }.items():
                path = folder / role / f"{what}.pem"
                write_whole(path, pem.decode())
                own["tls"][what] = str(path)
            own["state"] = str(folder / role / "state")
            if role in PARTIES:
                dataset = own["datasets"][DATASET]
                dataset["path"] = str(folder / role / "table.parquet")
                names = {"id": dataset["id"]} | ({"label": dataset["label"]["column"]} if role is Role.GUEST else {})
                tables[role].rename(columns=names).to_parquet(dataset["path"], index=False)
                own["policy"].update(policy or {})
            self.configs[role].write_text(yaml.safe_dump(own))

    def at(self, addresses: Mapping[Role, str]) -> dict[Role, ProcessConfig]:
        """Return the configurations with addresses in place of host names, for processes that cannot resolve names."""
        configs = {}
        for role, path in self.configs.items():
            settings = yaml.safe_load(path.read_text()) | {"listen": addresses[role]}
            for other, peer in settings["peers"].items():
                peer["address"] = addresses[other]
            configs[role] = ProcessConfig.model_validate(settings)
        return configs

    def joined(self, job: JobConfig) -> JoinedTable:
        """Return the training columns of both parties side by side. In a real job, no process has them."""
        datasets = [load_process_config(self.configs[role], {}).datasets[DATASET] for role in PARTIES]
        return join(*(make_block(read_table(each), each.preprocessing, job) for each in datasets))

    def job_folder(self, role: Role, job: str) -> JobFolder:
        """Return the folder with a process's part of the result."""
        return JobFolder(load_process_config(self.configs[role], {}).state, job)


@contextmanager
def serving(wan: Wan, organisations: Organisations, folder: Path) -> Iterator[tuple[Any, dict[Role, int]]]:
    """Run the three servers in their namespaces; yield a function that starts a command on a host, and process IDs."""
    hosts = folder / "hosts"
    lines = [f"{wan.address(role)} {name}" for role, name in organisations.names.items()]
    hosts.write_text("127.0.0.1 localhost\n" + "\n".join(lines) + "\n")
    # /etc/hosts resolves the names; each program sees its own file in its place.
    with_names = f'mount --bind {shlex.quote(str(hosts))} /etc/hosts && exec "$@"'

    def start(role: Role, *words: object, **options: Any) -> subprocess.Popen[Any]:
        words = (*words, "--config", organisations.configs[role])
        command = [sys.executable, "-m", "trilateral.cli.main", *map(str, words)]
        return wan.run_in(role, ["unshare", "--mount", "sh", "-c", with_names, "sh", *command], cwd=ROOT, **options)

    logs = {role: (folder / f"{role}.log").open("wb") for role in Role}
    servers = [start(role, "serve", role, stdout=logs[role], stderr=logs[role]) for role in Role]
    try:
        deadline = time.monotonic() + START_SECONDS
        for role in Role:
            while start(role, "healthcheck", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).wait():
                if time.monotonic() > deadline:
                    raise SystemExit((folder / f"{role}.log").read_text())
        yield start, {role: server.pid for role, server in zip(Role, servers, strict=True)}
    finally:
        for server in servers:
            server.terminate()
        for server in servers:
            server.wait()
        for log in logs.values():
            log.close()
