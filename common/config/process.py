"""The process: where one organisation's server listens, whom it talks to, what it permits."""

import ipaddress
import re
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field, ValidationInfo, field_validator, model_validator

from trilateral.common.base.roles import Role
from trilateral.common.config.dataset import DatasetConfig
from trilateral.common.config.settings import JobName, Settings


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _host_of(address: str) -> str:
    return address.rpartition(":")[0].strip("[]")


def _check_address(address: str) -> str:
    """Accept ``host:port``, an IPv6 host in brackets."""
    parts = re.fullmatch(r"(?:\[[0-9A-Fa-f:.]+\]|[^:/\[\]\s]+):(?P<port>[0-9]{1,5})", address)
    if parts is None or int(parts["port"]) > 65535:
        raise ValueError("expected host:port, such as 127.0.0.1:50051 (without https://; an IPv6 host in brackets)")
    return address


def _check_peer_port(address: str) -> str:
    if address.endswith(":0"):
        raise ValueError("expected the port on which the peer listens, from 1 to 65535")
    return address


def is_loopback_address(address: str) -> bool:
    """Whether ``host:port`` can be reached from this machine alone."""
    return _is_loopback(_host_of(address))


def _check_stays_here(address: str) -> None:
    if not is_loopback_address(address):
        raise ValueError(
            "is not an address of this machine itself, and with `plaintext: true` only localhost, 127.0.0.1 and [::1] "
            "are allowed: give `tls` in its place"
        )


def _check_name(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9._:-]{1,253}", name):
        raise ValueError("expected a host's name or address as a certificate has it, such as guest.example.org")
    return name


ListenAddress = Annotated[str, AfterValidator(_check_address)]
"""Port 0 lets the operating system choose one."""
PeerAddress = Annotated[str, AfterValidator(_check_address), AfterValidator(_check_peer_port)]
Seconds = Annotated[float, Field(gt=0, le=86_400)]


class TlsConfig(Settings):
    """The certificate by which this process shows who it is, and whose certificates it trusts. All files are PEM.

    They are read again when they change: whoever renews them need not restart anything.
    """

    certificate: Path
    """The certificate and those between it and the authority. Its subject alternative names say who this process is."""
    key: Path
    """The certificate's private key, for this process's user alone (mode 0600 or 0400)."""
    authorities: Path
    """Certificates of the authorities that may vouch for the peers, and for no one else: best one of their own."""


class PeerConfig(Settings):
    """Another process: where it listens, and what its certificate calls it. A mere address will do for both."""

    address: PeerAddress
    name: Annotated[str, AfterValidator(_check_name)] | None = None
    """The subject alternative name that makes a certificate this peer's. By default the host of the address."""

    @model_validator(mode="before")
    @classmethod
    def _from_address(cls, value: Any) -> Any:
        return {"address": value} if isinstance(value, str) else value

    @property
    def certificate_name(self) -> str:
        """The name that a certificate of this peer has, in lower case."""
        return (self.name or _host_of(self.address)).lower()


def _check_operator(entry: str) -> str:
    """Accept a role, or a name that cannot be a misspelt role."""
    if entry in set(Role):
        return entry
    if "." not in entry and ":" not in entry:
        raise ValueError(f"{entry:.40} is neither host, guest, coordinator nor a certificate's name with a dot in it")
    return _check_name(entry).lower()


Operators = Annotated[list[Annotated[str, AfterValidator(_check_operator)]], Field(max_length=100)]


class OperatorsConfig(Settings):
    """Who may start, stop and watch jobs: roles, or names of certificates that are no role's."""

    start: Operators = Field(default=[Role.GUEST.value])
    stop: Operators = Field(default=[Role.GUEST.value])
    watch: Operators = Field(default=[role.value for role in Role])
    """Asking for one job's state, or that of all, is watching too."""

    @property
    def names(self) -> frozenset[str]:
        """Everyone that is no role."""
        return frozenset({*self.start, *self.stop, *self.watch}) - set(Role)


HOST_POLICY = ("share_holdout_scores", "max_holdout", "max_evaluations", "allow_prediction", "max_scores_a_day")
"""What is the host's alone to permit."""


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
    max_ids_a_day: Annotated[int, Field(ge=0, le=2**53)] = 20_000_000
    """The most IDs that the other party may bring to alignments in one day of UTC: for jobs, for predictions and for
    `trilateral align` together. Of each it learns whether this party holds it, so that with enough of them it would
    try out every ID that there could be. 0 permits no alignment: jobs must then have `aligned: true`."""
    share_holdout_scores: bool = True
    """Host: give the guest u_A of the hold-out rows at the end, so that it can report on them. Without that the
    host refuses every job with a hold-out."""
    max_holdout: Annotated[float, Field(ge=0, lt=1)] = 0.5
    """Host: the largest share of the rows whose u_A the guest is given. It is of one job: jobs with other seeds hold
    out other rows: `max_scores_a_day` counts them all."""
    max_evaluations: Annotated[int, Field(ge=0)] = 5
    """Host: the most evaluations on the hold-out rows during a training, that at its end not counted. Each gives the
    guest u_A of these rows at another w: with as many as the host has training columns, the guest knows these rows'
    features up to a linear map."""
    allow_prediction: bool = False
    """Host: give the guest u_A of the rows for which it asks for a prediction. It is what prediction consists of, and a
    permission of its own: with as many rows as the host has features, and features that it knows from elsewhere, the
    guest finds the host's weights, and with them more about every other row."""
    max_scores_a_day: Annotated[int, Field(ge=0, le=2**53)] = 1_000_000
    """Host: the most u_A that leave in one day of UTC, those of hold-out rows included."""


class Limits(Settings):
    """How long to wait, and how much to do at a time."""

    peer_timeout: Seconds = 60.0
    """Seconds to wait for a peer that does not answer."""
    round_timeout: Seconds = 600.0
    """The most seconds before the coordinator begins a round again with the next attempt; it waits for less once some
    rounds have shown how long they take. To be the same at all three processes: a party's patience, `party_timeout`,
    follows from its own."""

    max_jobs: Annotated[int, Field(ge=1, le=32)] = 8
    """Jobs at a time; more are refused until one has ended. A party holds the columns of each in memory."""
    threads: Annotated[int, Field(ge=0, le=1024)] = 0
    """Threads that share the encrypted arithmetic of all jobs; 0 for one on each processor."""
    journal_days: Annotated[float, Field(ge=1, le=36_500)] = 90.0
    """Days after which the journal forgets a job that has not changed. Models and histories stay."""

    @property
    def party_timeout(self) -> float:
        """Seconds for which a party waits for any word of the job, or for a peer to take a vector in.

        Twice the coordinator's, which thus begins the round again before a party gives the job up.
        """
        return 2 * self.round_timeout


class MetricsConfig(Settings):
    """Numbers for Prometheus: sizes, times, names of jobs and their losses."""

    listen: ListenAddress | None = None
    """Where to hand them out, such as 127.0.0.1:9464, in plaintext to whoever can connect. By default nowhere."""


def _check_url(url: str) -> str:
    if not re.fullmatch(r"https?://[^\s/]+(?:/\S*)?", url):
        raise ValueError("expected a collector's URL, such as http://127.0.0.1:4318/v1/traces")
    return url


class TracesConfig(Settings):
    """OpenTelemetry traces of each round: who did what when, and sent what to whom."""

    endpoint: Annotated[str, AfterValidator(_check_url)] | None = None
    """Where to send them by OTLP over HTTP, such as http://127.0.0.1:4318/v1/traces. By default nowhere. Headers,
    certificates and the like are set by the variables that OpenTelemetry has for them, OTEL_EXPORTER_OTLP_*."""


class ProcessConfig(Settings):
    """One organisation's server."""

    role: Role
    tls: TlsConfig | None = None
    plaintext: bool = False
    """In place of `tls`, for trials: nothing is encrypted and nobody proves who they are, so that anyone on this
    machine can read and pretend to be anyone. Therefore only addresses of this machine itself are accepted."""
    listen: ListenAddress
    peers: dict[Role, PeerConfig]
    """The two other roles."""
    operators: OperatorsConfig = OperatorsConfig()
    """At the coordinator alone."""
    state: Path
    """Folder for models and histories, made if it is not there."""
    datasets: dict[JobName, DatasetConfig] = Field(default={})
    """Tables by the name that a job asks for; the coordinator has none."""
    policy: Policy = Policy()
    """The coordinator has none."""
    limits: Limits = Limits()
    metrics: MetricsConfig = MetricsConfig()
    traces: TracesConfig = TracesConfig()

    @field_validator("listen")
    @classmethod
    def _check_listen(cls, listen: str, info: ValidationInfo) -> str:
        if info.data.get("plaintext"):
            _check_stays_here(listen)
        return listen

    @field_validator("peers")
    @classmethod
    def _check_peers(cls, peers: dict[Role, PeerConfig], info: ValidationInfo) -> dict[Role, PeerConfig]:
        role = info.data.get("role")
        if role is None:  # has an error of its own
            return peers
        expected = [other for other in Role if other is not role]
        for other in expected:
            if other not in peers:
                raise ValueError(f"{other} is missing: the {role} needs the addresses of {' and '.join(expected)}")
        if role in peers:
            raise ValueError(f"{role} is this process itself: take it out")
        if info.data.get("plaintext"):
            for other in expected:
                try:
                    _check_stays_here(peers[other].address)
                except ValueError as error:
                    raise ValueError(f"{other} {error}") from None
        first, second = (peers[other].certificate_name for other in expected)
        if info.data.get("tls") is not None and first == second:
            raise ValueError(
                f"both would be known by the name {first} in a certificate: give each its own, such as "
                f"{expected[0]}: {{address: {peers[expected[0]].address}, name: {expected[0]}.example.org}}"
            )
        return peers

    @field_validator("operators")
    @classmethod
    def _check_operators(cls, operators: OperatorsConfig, info: ValidationInfo) -> OperatorsConfig:
        role = info.data.get("role")
        if role is not None and role is not Role.COORDINATOR:
            raise ValueError("the coordinator's configuration says who may start and stop jobs: take `operators` out")
        if operators.names and info.data.get("plaintext"):
            raise ValueError(
                "names of certificates mean nothing with `plaintext: true`: name roles alone, or give `tls` instead"
            )
        return operators

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
            for name in HOST_POLICY:
                if name in policy.model_fields_set:
                    raise ValueError(f"the scores are the host's to share: take `{name}` out")
        return policy

    @model_validator(mode="after")
    def _check_security(self) -> "ProcessConfig":
        if self.tls is None and not self.plaintext:
            raise ValueError(
                "`tls` is missing: give certificate, key and authorities (`trilateral certs` makes them); or, for a "
                "trial on this machine, `plaintext: true`, by which anyone on it can read and pretend to be anyone"
            )
        if self.tls is not None and self.plaintext:
            raise ValueError("`tls` and `plaintext: true` exclude each other: take one out")
        return self
