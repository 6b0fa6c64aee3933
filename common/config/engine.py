"""Where the arithmetic on a party's own rows runs."""

import re
from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator, model_validator

from trilateral.common.base.addresses import is_loopback, split_address
from trilateral.common.config.settings import Settings

SCHEDULER = re.compile(r"(?P<scheme>tcp|tls)://(?P<address>(?:\[[0-9A-Fa-f:.]+\]|[^:/\[\]\s]+):[0-9]{1,5})/?")


def stays_private(address: str) -> bool:
    """Return whether a connection to an address of Dask is encrypted, or does not leave this machine."""
    parts = SCHEDULER.fullmatch(address)
    return parts is not None and (parts["scheme"] == "tls" or is_loopback(split_address(parts["address"])[0]))


class EngineConfig(Settings):
    """What computes on this party's rows: this process, or the workers of a Dask cluster of this organisation.

    A worker gets this party's columns, and runs whatever code its scheduler sends. So the cluster's certificates come
    from an authority that issues to this cluster only.
    """

    kind: Literal["local", "dask"] = "local"
    """`local` computes in this process. `dask` computes on a cluster, and needs `pip install trilateral[dask]`."""
    scheduler: str | None = Field(default=None, max_length=300)
    """With `dask`: the address of the scheduler, such as `tls://scheduler.example.org:8786`. An address without TLS,
    such as `tcp://127.0.0.1:8786`, must be a loopback address."""
    authorities: Path | None = None
    """With `dask` and TLS: certificate of the authority that issues to this cluster only, PEM. Whoever has a
    certificate of this authority can run code on the workers and in this process."""
    certificate: Path | None = None
    """With `dask` and TLS: the certificate of this process for the cluster, PEM."""
    key: Path | None = None
    """With `dask` and TLS: the private key of this certificate. Only the user of this process may have access to it."""

    @field_validator("scheduler")
    @classmethod
    def _check_scheduler(cls, scheduler: str | None) -> str | None:
        if scheduler is None:
            return None
        if SCHEDULER.fullmatch(scheduler) is None:
            raise ValueError("expected the address of a Dask scheduler, such as tls://scheduler.example.org:8786")
        if not stays_private(scheduler):
            raise ValueError(
                "is not a loopback address, and without TLS anyone in the network can read this party's columns and "
                "run code on the workers: use tls:// with certificates"
            )
        return scheduler

    @model_validator(mode="after")
    def _check_complete(self) -> "EngineConfig":
        if self.kind == "local":
            if self.model_fields_set - {"kind"}:
                raise ValueError("these settings are for a cluster: add `kind: dask`, or remove them")
            return self
        if self.scheduler is None:
            raise ValueError("`scheduler` is missing: set the address of the Dask scheduler")
        files = [name for name in ("authorities", "certificate", "key") if getattr(self, name) is None]
        if self.scheduler.startswith("tls:") and files:
            raise ValueError(f"`{files[0]}` is missing: a scheduler with TLS needs authorities, certificate and key")
        if self.scheduler.startswith("tcp:") and len(files) < 3:
            raise ValueError("certificates have no effect without TLS: use tls:// in `scheduler`, or remove them")
        return self
