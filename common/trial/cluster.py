"""A Dask cluster on this machine, for tests and benchmarks: a scheduler in this process, and worker processes."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import dask
import distributed
from distributed.security import Security

from trilateral.common.base.roles import Role
from trilateral.common.trial.development import DevelopmentFiles


class TrialCluster:
    """A running cluster.

    Args:
        cluster: Dask's own object.
        files: the certificates; None without TLS.
    """

    def __init__(self, cluster: Any, files: DevelopmentFiles | None) -> None:
        self._cluster = cluster
        self._files = files

    @property
    def settings(self) -> dict[str, Any]:
        """The `engine` settings of a process that uses this cluster."""
        tls = {} if self._files is None else self._files.settings(Role.HOST)
        return {"kind": "dask", "scheduler": self._cluster.scheduler_address, **tls}

    @property
    def workers(self) -> dict[str, int]:
        """Process IDs of the workers that the scheduler knows, by address."""
        running = set(self._cluster.scheduler.workers)
        nannies = self._cluster.workers.values()
        return {nanny.worker_address: nanny.pid for nanny in nannies if nanny.worker_address in running}

    @property
    def pids(self) -> list[int]:
        """Process IDs of the workers that the scheduler knows."""
        return [*self.workers.values()]

    @property
    def n_keys(self) -> int:
        """How many tasks and pieces of data the scheduler knows."""
        return len(self._cluster.scheduler.tasks)

    def kill(self, pid: int) -> None:
        """Kill a worker at once. Its nanny starts another."""
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    def freeze(self, pid: int) -> None:
        """Stop a worker where it stands, and let the scheduler drop it as it drops each one that is silent for long.

        Its nanny starts it again after `kill`.
        """
        (address,) = (address for address, its_pid in self.workers.items() if its_pid == pid)
        os.kill(pid, signal.SIGSTOP)
        self._cluster.sync(self._cluster.scheduler.remove_worker, address, stimulus_id="freeze")

    def kill_one(self, number: int) -> None:
        """Kill one of the workers that the scheduler knows, chosen by a number."""
        pids = self.pids
        self.kill(pids[number % len(pids)])

    def logs(self) -> str:
        """Return what the scheduler and all workers have logged."""
        return "\n".join(self._cluster.get_logs().values())


@contextmanager
def trial_cluster(n_workers: int, files: DevelopmentFiles | None = None) -> Iterator[TrialCluster]:
    """Run a cluster within the block.

    Args:
        n_workers: worker processes, which run one task at a time each.
        files: certificates for mutual TLS; None for a cluster without TLS, on a loopback address.
    """
    security = None
    if files is not None:
        authorities, certificate, key = (
            str(path) for path in (files.authorities(Role.HOST), files.certificate(Role.HOST), files.key(Role.HOST))
        )
        security = Security(  # type: ignore[no-untyped-call]
            tls_ca_file=authorities,
            tls_scheduler_cert=certificate,
            tls_scheduler_key=key,
            tls_worker_cert=certificate,
            tls_worker_key=key,
            tls_client_cert=certificate,
            tls_client_key=key,
            require_encryption=True,
        )
    # Without this setting, Dask gives up a worker that takes more than 15 seconds to start again.
    dask.config.set({"distributed.deploy.lost-worker-timeout": "1h"})
    cluster = distributed.LocalCluster(  # type: ignore[no-untyped-call]
        n_workers=n_workers,
        threads_per_worker=1,
        memory_limit=0,
        dashboard_address="127.0.0.1:0",
        protocol="tcp://" if files is None else "tls://",
        security=security,
        silence_logs=False,
    )
    with cluster:
        yield TrialCluster(cluster, files)
