"""The engine of a process, made from its configuration."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from cryptography.x509 import load_pem_x509_certificates

from trilateral.common.base.errors import ConfigError
from trilateral.common.compute.engine import Cluster
from trilateral.common.config.process import ProcessConfig
from trilateral.common.rpc.certificates import read_file

if TYPE_CHECKING:
    from trilateral.common.compute.dask import DaskCluster

log = logging.getLogger(__name__)


@contextmanager
def cluster_of(config: ProcessConfig) -> Iterator[Cluster | None]:
    """Yield the workers that a process uses, or None if it computes in itself. They are reached when a job needs them.

    Raises:
        ConfigError: Dask is not installed, or a file of the configuration cannot be used.
    """
    if config.engine.kind == "local":
        yield None
        return
    cluster = open_cluster(config, config.limits.peer_timeout)
    log.info("engine: the workers of %s", config.engine.scheduler)
    try:
        yield cluster
    finally:
        cluster.close()


def open_cluster(config: ProcessConfig, patience: float) -> "DaskCluster":
    """Return a connection to the scheduler of a configuration, which the caller closes.

    Args:
        config: the configuration.
        patience: seconds to wait for the scheduler and for a worker.

    Raises:
        ConfigError: Dask is not installed, or a file of the configuration cannot be used.
    """
    engine = config.engine
    for name, path in (("authorities", engine.authorities), ("certificate", engine.certificate)):
        if path is not None:
            read_file(f"engine.{name}: {path}", path)
    if engine.authorities is not None and config.tls is not None:
        _check_own(engine.authorities, config.tls.authorities)
    if engine.key is not None:
        read_file(f"engine.key: {engine.key}", engine.key, forbidden=0o077)
    try:
        from trilateral.common.compute.dask import DaskCluster
    except ImportError:
        raise ConfigError(
            "engine.kind: Dask is not installed: run `pip install '.[dask]'` in this project's folder, or set `kind: "
            "local`"
        ) from None
    try:
        return DaskCluster(engine, patience)
    except (OSError, ValueError) as error:
        raise ConfigError(f"engine: the certificate, its key or the authorities cannot be used: {error}") from None


def _check_own(authorities: Path, of_peers: Path) -> None:
    """Refuse an authority that issues to other organisations: its certificates would let them run code here."""
    try:
        own, others = (set(load_pem_x509_certificates(path.read_bytes())) for path in (authorities, of_peers))
    except (OSError, ValueError):
        return  # Whoever uses the file says what is wrong with it.
    if own & others:
        raise ConfigError(
            f"engine.authorities: {authorities} has an authority that `tls.authorities` has as well, so other"
            " organisations could run code on the workers and in this process: make an authority for this cluster"
            " only, see docs/scaling.md"
        )
