"""The process: where one organisation's server listens, whom it talks to, what it permits."""

import ipaddress
import re
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field, ValidationInfo, field_validator

from common.config.dataset import DatasetConfig
from common.config.settings import JobName, Settings
from common.roles import Role


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _check_address(address: str) -> str:
    """Accept ``host:port`` with a host that never leaves this machine, an IPv6 one in brackets."""
    parts = re.fullmatch(r"(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<host>[^:/\[\]\s]+)):(?P<port>[0-9]{1,5})", address)
    if parts is None or int(parts["port"]) > 65535:
        raise ValueError("expected host:port, such as 127.0.0.1:50051 (without https://; an IPv6 host in brackets)")
    if not _is_loopback(parts["v6"] or parts["host"]):
        raise ValueError(
            "is not an address of this machine itself; connections are not encrypted yet, so only localhost, "
            "127.0.0.1 and [::1] are allowed"
        )
    return address


def _check_peer_port(address: str) -> str:
    if address.endswith(":0"):
        raise ValueError("expected the port on which the peer listens, from 1 to 65535")
    return address


ListenAddress = Annotated[str, AfterValidator(_check_address)]
"""Port 0 lets the operating system choose one."""
PeerAddress = Annotated[str, AfterValidator(_check_address), AfterValidator(_check_peer_port)]
Seconds = Annotated[float, Field(gt=0, le=86_400)]


class Policy(Settings):
    """What a party permits, whoever asks for the job."""

    min_key_bits: Annotated[int, Field(ge=256, le=8192)] = 2048
    """The smallest Paillier modulus under which this party encrypts."""
    min_rows_per_feature: Annotated[int, Field(ge=2)] = 30
    """The smallest batch for each of this party's features. A gradient over fewer rows gives the labels away to whoever
    knows the features: it is that many equations of about 28 bits for as many unknown bits as there are rows."""
    min_batch: Annotated[int, Field(ge=1)] = 100
    """The smallest batch and curvature batch, however few features there are. A mean over m rows moves by 1/m of what
    one row changes: with 100 a single row is a hundredth of what the coordinator sees."""
    max_epochs: Annotated[int, Field(ge=1)] = 1000
    """The most epochs that a job may ask for."""
    max_rounds: Annotated[int, Field(ge=1)] = 10_000
    """The most rounds that a job may come to: each shows the coordinator one more gradient of this party's rows."""
    share_holdout_scores: bool = True
    """Host: give the guest u_A of the hold-out rows at the end, so that it can report on them. Without that the
    host refuses every job with a hold-out."""
    max_holdout: Annotated[float, Field(ge=0, lt=1)] = 0.5
    """Host: the largest share of the rows whose u_A the guest is given. It is of one job: jobs with other seeds hold
    out other rows, and the audit log counts the scores that were handed over."""


class Limits(Settings):
    """How long to wait, and how much to do at a time."""

    peer_timeout: Seconds = 60.0
    """Seconds to wait for a peer that does not answer."""
    round_timeout: Seconds = 600.0
    """Seconds before the coordinator begins a round again with the next attempt. To be the same at all three
    processes: a party's patience, `party_timeout`, follows from its own."""

    max_jobs: Annotated[int, Field(ge=1, le=32)] = 8
    """Jobs at a time; more are refused until one has ended. A party holds the columns of each in memory."""

    @property
    def party_timeout(self) -> float:
        """Seconds for which a party waits for any word of the job, or for a peer to take a vector in.

        Twice the coordinator's, which thus begins the round again before a party gives the job up.
        """
        return 2 * self.round_timeout


class ProcessConfig(Settings):
    """One organisation's server."""

    role: Role
    listen: ListenAddress
    peers: dict[Role, PeerAddress]
    """The two other roles."""
    state: Path
    """Folder for models and histories, made if it is not there."""
    datasets: dict[JobName, DatasetConfig] = Field(default={})
    """Tables by the name that a job asks for; the coordinator has none."""
    policy: Policy = Policy()
    """The coordinator has none."""
    limits: Limits = Limits()

    @field_validator("peers")
    @classmethod
    def _check_peers(cls, peers: dict[Role, str], info: ValidationInfo) -> dict[Role, str]:
        role = info.data.get("role")
        if role is None:  # has an error of its own
            return peers
        expected = [other for other in Role if other is not role]
        for other in expected:
            if other not in peers:
                raise ValueError(f"{other} is missing: the {role} needs the addresses of {' and '.join(expected)}")
        if role in peers:
            raise ValueError(f"{role} is this process itself: take it out")
        return peers

    @field_validator("datasets")
    @classmethod
    def _check_datasets(cls, datasets: dict[str, DatasetConfig], info: ValidationInfo) -> dict[str, DatasetConfig]:
        if datasets and info.data.get("role") is Role.COORDINATOR:
            raise ValueError("the coordinator has no data: take `datasets` out")
        return datasets

    @field_validator("policy")
    @classmethod
    def _check_policy(cls, policy: Policy, info: ValidationInfo) -> Policy:
        role = info.data.get("role")
        if role is Role.COORDINATOR:
            raise ValueError("each party has its own policy, the coordinator none: take `policy` out")
        if role is Role.GUEST:
            for name in ("share_holdout_scores", "max_holdout"):
                if name in policy.model_fields_set:
                    raise ValueError(f"the scores are the host's to share: take `{name}` out")
        return policy
