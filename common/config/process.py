"""The configuration of one organisation's process: its addresses, its peers and what it permits."""

import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainSerializer,
    ValidationInfo,
    field_validator,
    model_validator,
)

from trilateral.common.base.addresses import is_loopback, split_address
from trilateral.common.base.roles import Role
from trilateral.common.config.dataset import DatasetConfig
from trilateral.common.config.engine import EngineConfig
from trilateral.common.config.job import ProtocolName
from trilateral.common.config.settings import JobName, Settings


def _check_address(address: str) -> str:
    """Accept ``host:port``, with an IPv6 host in brackets."""
    parts = re.fullmatch(r"(?:\[[0-9A-Fa-f:.]+\]|[^:/\[\]\s]+):(?P<port>[0-9]{1,5})", address)
    if parts is None or int(parts["port"]) > 65535:
        raise ValueError("expected host:port, such as 127.0.0.1:50051 (no https://; put an IPv6 host in brackets)")
    return address


def _check_peer_port(address: str) -> str:
    if address.endswith(":0"):
        raise ValueError("expected the port that the peer listens on, from 1 to 65535")
    return address


def is_loopback_address(address: str) -> bool:
    """Return whether ``host:port`` is a loopback address, which only this machine can reach."""
    return is_loopback(split_address(address)[0])


def _check_stays_here(address: str) -> None:
    if not is_loopback_address(address):
        raise ValueError(
            "is not a loopback address, and `plaintext: true` allows only localhost, 127.0.0.1 and [::1]: use `tls` "
            "instead"
        )


def _check_name(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9._:-]{1,253}", name):
        raise ValueError("expected a host name or address as in a certificate, such as guest.example.org")
    return name


ListenAddress = Annotated[str, AfterValidator(_check_address)]
"""``host:port`` to listen on. Port 0 lets the operating system choose a port."""
PeerAddress = Annotated[str, AfterValidator(_check_address), AfterValidator(_check_peer_port)]
"""``host:port`` of a peer."""
Seconds = Annotated[float, Field(gt=0, le=86_400)]
"""A positive duration of at most a day."""


class TlsConfig(Settings):
    """The certificate that identifies this process, and the authorities that it trusts. All files are PEM.

    The process reads the files again when they change, so renewing a certificate needs no restart.
    """

    certificate: Path
    """This process's certificate. Its subject alternative names identify the process."""
    key: Path
    """The private key of the certificate. Only the user of this process may have access to it (mode 0600 or 0400)."""
    authorities: Path
    """Certificates of the authorities that may issue the peers' certificates, intermediate ones included: one of them
    must have issued a caller's certificate itself. Use an authority that issues to these three processes only."""


def _check_fingerprint(text: str) -> str:
    """Accept a SHA-256 in hexadecimal, with or without colons and spaces, and return its 64 lower-case digits."""
    digits = re.sub(r"[:\s]", "", text).lower()
    if not re.fullmatch(r"[0-9a-f]{64}", digits):
        raise ValueError(
            "expected the SHA-256 of a public key, 64 hexadecimal digits, as `trilateral certs show` prints it"
        )
    return digits


def _as_list(value: object) -> object:
    return [value] if isinstance(value, str) else value


Fingerprints = Annotated[
    list[Annotated[str, AfterValidator(_check_fingerprint)]], BeforeValidator(_as_list), Field(max_length=10)
]
"""Fingerprints of public keys; a single one needs no list."""


class PeerConfig(Settings):
    """Another process. The short form is the address alone, such as `host: host.example.org:50051`."""

    address: PeerAddress
    """Where the peer listens, as host:port, with an IPv6 host in brackets."""
    name: Annotated[str, AfterValidator(_check_name)] | None = None
    """The subject alternative name by which this process recognises the peer's certificate. By default the host in
    `address`."""
    fingerprint: Fingerprints = Field(default=[])
    """SHA-256 of the public key in the peer's certificate, as `trilateral certs show` prints it; two in a list while
    the peer renews its key. A caller or a server with the right name but another key is refused. By default, any key
    is accepted for which an authority has issued a certificate with this name."""

    @model_validator(mode="before")
    @classmethod
    def _from_address(cls, value: object) -> object:
        return {"address": value} if isinstance(value, str) else value

    @property
    def certificate_name(self) -> str:
        """The name in this peer's certificate, in lower case."""
        return (self.name or split_address(self.address)[0]).lower()


def _check_client(name: str) -> str:
    if name in set(Role):
        raise ValueError(f"{name} is a role: list the names in the certificates of the people who may open the page")
    return _check_name(name).lower()


def _check_operator(entry: str) -> str:
    """Accept a role or a certificate name. The dot tells a name from a misspelt role."""
    if entry in set(Role):
        return entry
    if "." not in entry and ":" not in entry:
        raise ValueError(f"{entry:.40} is neither a role (host, guest, coordinator) nor a certificate name with a dot")
    return _check_name(entry).lower()


Operators = Annotated[list[Annotated[str, AfterValidator(_check_operator)]], Field(max_length=100)]


class OperatorsConfig(Settings):
    """Who may start, stop and watch jobs. Each list holds roles and subject alternative names of other certificates."""

    start: Operators = Field(default=[Role.GUEST.value])
    """Who may start jobs. By default the guest."""
    stop: Operators = Field(default=[Role.GUEST.value])
    """Who may stop jobs. By default the guest."""
    watch: Operators = Field(default=[role.value for role in Role])
    """Who may watch jobs and query their states. By default all three roles."""

    @property
    def names(self) -> frozenset[str]:
        """All entries that are certificate names and not roles."""
        return frozenset({*self.start, *self.stop, *self.watch}) - set(Role)


UNLIMITED = 2**53
"""The daily limit that `unlimited` stands for: more than is ever counted in one day."""


def _as_limit(value: object) -> object:
    return UNLIMITED if value == "unlimited" else value


def _show_limit(limit: int) -> int | str:
    return "unlimited" if limit == UNLIMITED else limit


DailyLimit = Annotated[
    int, BeforeValidator(_as_limit), Field(ge=0, le=UNLIMITED), PlainSerializer(_show_limit, return_type=int | str)
]
"""How much may happen in one day of UTC: a number, or `unlimited`."""

MAX_REASONS = 10
"""The most reasons of a row, for each party."""

HOST_POLICY = (
    "min_rows_per_equation",
    "share_holdout_scores",
    "max_holdout",
    "share_fold_scores",
    "allow_prediction",
    "max_scores_a_day",
    "min_columns_per_point",
    "max_reasons",
    "share_bins",
)
"""Options of `Policy` that only the host may set."""
GUEST_POLICY = ("min_label_bits", "share_bin_counts", "min_bin_label_count")
"""Options of `Policy` that only the guest may set."""


class Policy(Settings):
    """What a party permits, whoever starts the job. In the descriptions, u_A is the host's part of a row's score."""

    protocols: Annotated[list[ProtocolName], Field(min_length=1)] = Field(default=["paillier", "shares"])
    """The protocols in which this party trains. Under `shares`, a coordinator that colludes with one party learns the
    columns of the other; under `paillier` it learns their scores. The default permits both."""
    min_key_bits: Annotated[int, Field(ge=256, le=8192)] = 2048
    """The smallest Paillier modulus, in bits, under which this party encrypts. It has no effect on `shares`."""
    min_rows_per_feature: Annotated[int, Field(ge=2)] = 30
    """The smallest batch, in rows for each feature of the *other* party. A gradient over fewer rows reveals this
    party's labels or scores to the other party, which knows its features: each feature gives one equation of about 28
    bits, and each label is one unknown bit. The other party reports how many features it has, and the coordinator
    confirms the number. Under `shares`, the other party sees no gradient but only its own final weights, so the rule
    holds for the whole training set whatever the batch is."""
    min_label_bits: Annotated[float, Field(ge=0, le=10_000)] = 56.0
    """Guest only: the entropy that the labels of a batch need, in bits, for each equation that the host learns about
    them, over all trainings on a dataset. A batch of m rows of which k have the rarer label has log2 C(m, k) bits. For
    each of its columns and each batch, the host learns one equation of about 28 bits. The guest's secret first weights
    hide most of as many equations as its features outnumber the batches. The default is twice the bits of an equation.
    0 accepts all labels and any number of trainings. Under `shares`, a training is one batch of all training rows: the
    host learns only its final weights and the final loss, one equation for each, and there is no secret start."""
    min_batch: Annotated[int, Field(ge=1)] = 100
    """The smallest batch and curvature batch in rows, regardless of the number of features. The coordinator sees means
    over batches. With the default, one row contributes at most one hundredth of a mean. If the guest weights its rows,
    a batch counts there as the number of equally weighted rows with the same variance, (sum c)^2 / sum c^2."""
    min_changed_rows: Annotated[int, Field(ge=0)] = 100
    """The smallest number of training rows in which two jobs may differ, unless they have the same rows. The difference
    of two results is a sum over the rows that differ. At most a twentieth of the training rows is asked for. With
    `evaluate_every`, the same holds for the rows that are evaluated. This party compares a job with all earlier ones,
    whatever the datasets are called. At the guest, a row with a changed label is another row. 0 permits any
    difference."""
    max_epochs: Annotated[int, Field(ge=1)] = 1000
    """The maximum number of epochs of a job."""
    max_fits: Annotated[int, Field(ge=1)] = 101
    """The maximum number of fits of a job: one without folds, and one for each penalty and fold and one more with them.
    Each fit shows the coordinator gradients at other weights, of all training rows but one fold. How many rounds each
    takes tells both parties a few bits. 1 refuses cross-validation. The default permits 10 penalties with 10 folds."""
    max_rounds: Annotated[int, Field(ge=1)] = 10_000
    """The maximum number of rounds of a job. Each round shows the coordinator one more gradient of this party's
    rows."""
    min_rows_per_equation: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 3
    """Host only: the smallest number of training rows for each equation about them, over all trainings on a dataset.
    Each training gives the guest one equation about each of the host's columns for each of the guest's training columns
    in each batch; under `shares` one for each of its training columns and one for the loss. With as many equations as
    rows, the guest can solve for the values. `min_label_bits` is the guest's counterpart."""
    share_inference: bool = False
    """Whether a job may tell the *other* party the standard errors of its own weights, with the job's `inference`.
    They come from the covariance of these weights, which is a function of every row's score: one equation for each pair
    of the other party's training columns, counted like those of the weights. If two of its columns have only one row in
    common, the covariance tells much about the score of that row. If false, this party refuses such jobs."""
    max_ids_a_day: DailyLimit = 20_000_000
    """The maximum number of IDs that the other party may bring to alignments in one day (UTC), counted over jobs,
    predictions and `trilateral align`, and at the host with those of online requests. The other party learns of each
    ID whether this party holds it; with enough IDs it could try all possible ones. 0 permits no alignment, so jobs
    must then set `aligned: true`. `unlimited` counts the IDs, and refuses none."""
    max_evaluations: Annotated[int, Field(ge=0)] = 5
    """The maximum number of evaluations on the hold-out rows during a training, not counting the one at the end. Each
    evaluation gives the guest u_A of the same rows for different weights. With as many evaluations as the host has
    training columns, the guest knows the features of these rows up to a linear map. Each also tells the coordinator two
    figures about the guest's labels. Under `shares`, an evaluation gives the guest nothing, and the coordinator one
    figure."""
    share_earlier_weights: bool = True
    """Whether a job may start from an earlier model (`start_from`). The coordinator then learns this party's weights of
    that model, with three decimals, in the units of the new training columns. Set it to false if the state folder has
    models that this coordinator must not learn."""
    share_holdout_scores: bool = True
    """Host only: whether to give the guest u_A of the hold-out rows at the end of a training, so that the guest can
    measure the model. If false, the host refuses every job with a hold-out."""
    max_holdout: Annotated[float, Field(ge=0, lt=1)] = 0.5
    """Host only: the largest share of the rows that one job may hold out, for which the guest is given u_A. Jobs with
    different seeds hold out different rows; `max_scores_a_day` limits them all together."""
    share_fold_scores: bool = False
    """Host only: whether the guest may learn the score of each training row in jobs with `choose: auc`, once for each
    penalty that the job compares. `max_scores_a_day` counts these scores, and `min_columns_per_point` the penalties."""
    share_split: bool = False
    """Whether to tell the other party what the `split` column of this party's dataset says about each common row: that
    it trains, which set of rows it evaluates, or that it is unused. Otherwise this party refuses jobs with `holdout:
    column` on such a dataset."""
    share_folds: bool = False
    """Whether to tell the other party in which fold of a cross-validation each training row lies, in jobs whose folds
    this party decides: by the column in `folds` of its dataset, or at the guest by labels. Otherwise this party refuses
    such jobs."""
    allow_prediction: bool = False
    """Host only: whether to give the guest u_A of the rows that it asks to predict. Prediction is impossible without
    it. The permission is separate from the others because of what it reveals: with as many rows as the host has
    features, and feature values known from elsewhere, the guest can compute the host's weights, and with them learn
    more about every other row."""
    max_scores_a_day: DailyLimit = 1_000_000
    """Host only: the maximum number of values u_A sent to the guest in one day (UTC), including those of hold-out
    rows. `unlimited` counts them, and refuses none."""
    min_columns_per_point: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 3
    """Host only: the smallest number of the host's columns for each point, over all jobs and predictions on a dataset.
    A point is one set of the host's weights with which rows were scored for the guest: the result of a job, or an
    evaluation. Each gives the guest one more linear function of every row that it scores. With the default, a host with
    13 columns gives scores at 5 points: 13 / 3, rounded up. The same model counts once, however often it predicts."""
    max_reasons: Annotated[int, Field(ge=0, le=MAX_REASONS)] = 0
    """Host only: the most reason codes of a row that the guest may have beside u_A: labels from `reason_labels` of the
    dataset, of those of the host's columns that raise u_A most. Each code of a row counts as one more score under
    `max_scores_a_day`, and each code of a model as one more point under `min_columns_per_point`. A label of a column of
    few values may tell the guest the value. With 0, the guest gets no code."""
    share_bins: Literal["none", "guest"] = "none"
    """Host only: who may see the labels in this party's bins, without the names of columns and the bounds of bins. With
    `guest`, a bins job shows the guest, for each fine bin of at most 20 in a column, its number of rows and how many of
    them are positive. With `none`, the host refuses bins jobs, and so cannot train on weights of evidence."""
    share_bin_counts: Literal["none", "host"] = "none"
    """Guest only: whether the host is told how its fine bins were merged, and how many rows of each merged bin are
    positive. The host needs it to train on weights of evidence. `min_label_bits` limits such counts over all jobs.
    Two bins that differ by one row show the label of this row."""
    min_bin_label_count: Annotated[int, Field(ge=1)] = 20
    """Guest only: the fewest rows of each label in a merged bin of the host's. Fine bins with fewer are merged before
    the host is told. It keeps an honest host from learning labels of few rows by accident."""


class Limits(Settings):
    """How long to wait, and how much to do at the same time."""

    peer_timeout: Seconds = 60.0
    """Seconds to wait for a peer that does not answer."""
    round_timeout: Seconds = 600.0
    """The maximum number of seconds without progress that the coordinator waits before it repeats a round, or, before
    the first round, ends the job. It waits for less once it knows how long rounds take. A job that progresses never
    times out. Set the same value at all three processes: a party gives up a job after twice this time without a message
    and without progress."""

    max_jobs: Annotated[int, Field(ge=1, le=32)] = 8
    """The maximum number of jobs at the same time. Further jobs are refused until one has ended. A party holds the
    training columns of each job in memory."""
    threads: Annotated[int, Field(ge=0, le=1024)] = 0
    """Threads for the encrypted arithmetic, shared by all jobs. The default, 0, means one for each processor."""
    journal_days: Annotated[float, Field(ge=1, le=36_500)] = 90.0
    """Days after which the journal forgets an unchanged job. Models and histories are kept."""

    @property
    def party_timeout(self) -> float:
        """Seconds that a party waits for a message of the job, or for a peer to accept a vector.

        The value is twice `round_timeout`, so that the coordinator repeats the round before a party gives up the job.
        """
        return 2 * self.round_timeout


class MetricsConfig(Settings):
    """Metrics for Prometheus: sizes, durations, names of jobs and their losses."""

    listen: ListenAddress | None = None
    """The address that serves the metrics, such as 127.0.0.1:9464. Anyone who can connect can read them, unencrypted.
    By default the process serves no metrics."""


def _check_url(url: str) -> str:
    if not re.fullmatch(r"https?://[^\s/]+(?:/\S*)?", url):
        raise ValueError("expected the URL of a collector, such as http://127.0.0.1:4318/v1/traces")
    return url


class TracesConfig(Settings):
    """OpenTelemetry traces of each round: the steps of each process and the messages between them."""

    endpoint: Annotated[str, AfterValidator(_check_url)] | None = None
    """The URL to send traces to, by OTLP over HTTP, such as http://127.0.0.1:4318/v1/traces. By default the process
    sends no traces. OpenTelemetry's own environment variables, OTEL_EXPORTER_OTLP_*, set headers and certificates."""


class ScratchConfig(Settings):
    """Where the rows of a running job lie, besides memory. All of it is gone when the job ends."""

    folder: Path | None = None
    """The folder for rows that do not fit in memory. It may be on another disk, or in memory, such as /dev/shm. By
    default it is the state folder."""
    max_gb: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """The most GB (10^9 bytes) on disk for the rows of all jobs together. A job that needs more is refused or fails
    before it writes them. By default there is no limit but the space that is free."""
    memory_mb: Annotated[int, Field(ge=0, le=2**30)] = 128
    """MB (10^6 bytes) of memory for the rows of all jobs together. What does not fit lies on disk. With the default,
    jobs of up to a few hundred thousand rows of ten columns do not use the disk."""
    encrypt: bool = True
    """Whether rows on disk are encrypted, with keys that exist only in the memory of this process."""


class Precomputed(Settings):
    """A dataset that the model of a job scores online."""

    job: JobName
    """Name of the job that trained the model."""
    dataset: JobName
    """Name of one of the `datasets`."""
    reasons: Annotated[int, Field(ge=0, le=MAX_REASONS)] = 0
    """The reason codes of each row, at most `policy.max_reasons`. Each ID that the guest asks for counts as one score
    more for each of them, whether or not the guest uses them."""


def _check_loopback(address: str) -> str:
    if not is_loopback_address(address):
        raise ValueError(
            "is not a loopback address: the scores travel unencrypted, so only programs on this machine may ask; use "
            "localhost, 127.0.0.1 or [::1], such as 127.0.0.1:8081"
        )
    return address


class OnlineConfig(Settings):
    """Scores of single rows within milliseconds, in place of whole tables. The host keeps its part ready."""

    precompute: Annotated[list[Precomputed], Field(max_length=16)] = Field(default=[])
    """Host only: which models score which datasets online. The host scores the whole dataset at its start and after
    each change of the table, and keeps 24 bytes for each row in memory. `policy` and `jobs` of the dataset must permit
    the prediction, and `max_scores_a_day` and `max_ids_a_day` count each ID that the guest asks for."""
    listen: Annotated[ListenAddress, AfterValidator(_check_loopback)] | None = None
    """Guest only: the loopback address that answers with scores over HTTP, such as 127.0.0.1:8081. Each request needs
    the token in the file `.online-token` of the state folder. By default only the command line, the Python API and gRPC
    with the guest's own certificate get scores."""
    max_per_second: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 100.0
    """Guest only: the most IDs that this process asks the host for in a second, over all callers. It keeps a program
    that runs wild from spending the host's daily limit. Twice as many may come at once after a quiet second."""


class UiConfig(Settings):
    """A page in the browser that shows what this process does: its jobs, their rounds, its checks and its audit log."""

    listen: ListenAddress | None = None
    """The address that serves the page, such as 127.0.0.1:8080. By default there is no page. Without `clients`, only a
    loopback address is accepted, and every program and every user of this machine can read the page."""
    clients: Annotated[list[Annotated[str, AfterValidator(_check_client)]], Field(max_length=100)] = Field(default=[])
    """Subject alternative names of the certificates that may open the page, issued by an authority in
    `tls.authorities`. With at least one, the page is served under TLS with this process's certificate, and the browser
    must show such a certificate. The certificates of the peers do not open the page."""
    allow_changes: bool = False
    """Whether the page can start, stop and resume jobs, as far as the coordinator's `operators` permit it to this
    process. Under TLS it needs `clients`."""


class ProcessConfig(Settings):
    """The configuration of one organisation's process."""

    role: Role
    """The role of this process: `host`, `guest` or `coordinator`."""
    tls: TlsConfig | None = None
    """Certificate, key and authorities. Required unless `plaintext` is true."""
    plaintext: bool = False
    """Whether to run without TLS, for a trial on one machine. Nothing is encrypted and no process proves its role, so
    that anyone on this machine can read all messages and impersonate any role. Only loopback addresses are accepted.
    Cannot be combined with `tls`."""
    listen: ListenAddress
    """The address that this process listens on, as host:port. Port 0 lets the operating system choose a port."""
    peers: dict[Role, PeerConfig]
    """The processes of the two other roles, by role."""
    operators: OperatorsConfig = OperatorsConfig()
    """Coordinator only: who may start, stop and watch jobs."""
    state: Path
    """The folder for models, histories and the journal. It is created if it does not exist. A relative path starts at
    the folder of the configuration file."""
    state_key: Path | None = None
    """File with a key that encrypts the journal, 64 hexadecimal digits. Keep it outside of the state folder, where only
    this process can read it. An existing journal is encrypted at the next start. By default it is not encrypted."""
    datasets: dict[JobName, DatasetConfig] = Field(default={})
    """Host and guest only: the tables, by the name that jobs use."""
    policy: Policy = Policy()
    """Host and guest only: what this party permits."""
    limits: Limits = Limits()
    """How long to wait, and how much to do at the same time."""
    scratch: ScratchConfig = ScratchConfig()
    """Host and guest only: where the rows of a running job lie."""
    engine: EngineConfig = EngineConfig()
    """Host and guest only: what computes on this party's rows."""
    metrics: MetricsConfig = MetricsConfig()
    """Metrics for Prometheus."""
    traces: TracesConfig = TracesConfig()
    """OpenTelemetry traces."""
    online: OnlineConfig = OnlineConfig()
    """Host and guest only: scores of single rows."""
    ui: UiConfig = UiConfig()
    """A page in the browser that shows what this process does."""

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
        if role is None:  # reported as an error of its own
            return peers
        expected = [other for other in Role if other is not role]
        for other in expected:
            if other not in peers:
                raise ValueError(f"{other} is missing: the {role} needs the addresses of {' and '.join(expected)}")
        if role in peers:
            raise ValueError(f"{role} is the role of this process itself: remove it")
        if info.data.get("plaintext"):
            for other in expected:
                try:
                    _check_stays_here(peers[other].address)
                except ValueError as error:
                    raise ValueError(f"{other} {error}") from None
        first, second = (peers[other].certificate_name for other in expected)
        if info.data.get("tls") is not None and first == second:
            raise ValueError(
                f"both peers have the certificate name {first}: give each a name of its own, such as "
                f"{expected[0]}: {{address: {peers[expected[0]].address}, name: {expected[0]}.example.org}}"
            )
        return peers

    @field_validator("operators")
    @classmethod
    def _check_operators(cls, operators: OperatorsConfig, info: ValidationInfo) -> OperatorsConfig:
        role = info.data.get("role")
        if role is not None and role is not Role.COORDINATOR:
            raise ValueError("only the coordinator decides who may start and stop jobs: remove `operators`")
        if operators.names and info.data.get("plaintext"):
            raise ValueError(
                "there are no certificate names with `plaintext: true`: list roles only, or use `tls` instead"
            )
        return operators

    @field_validator("datasets")
    @classmethod
    def _check_datasets(cls, datasets: dict[str, DatasetConfig], info: ValidationInfo) -> dict[str, DatasetConfig]:
        if datasets and info.data.get("role") is Role.COORDINATOR:
            raise ValueError("the coordinator has no data: remove `datasets`")
        return datasets

    @field_validator("policy")
    @classmethod
    def _check_policy(cls, policy: Policy, info: ValidationInfo) -> Policy:
        role = info.data.get("role")
        if role is Role.COORDINATOR:
            raise ValueError("only the host and the guest have a policy: remove `policy`")
        if role is Role.GUEST:
            for name in HOST_POLICY:
                if name in policy.model_fields_set:
                    raise ValueError(f"this is a setting of the host alone: remove `{name}`")
        if role is Role.HOST:
            for name in GUEST_POLICY:
                if name in policy.model_fields_set:
                    raise ValueError(f"only the guest has labels: remove `{name}`")
        return policy

    @field_validator("scratch")
    @classmethod
    def _check_scratch(cls, scratch: ScratchConfig, info: ValidationInfo) -> ScratchConfig:
        if info.data.get("role") is Role.COORDINATOR:
            raise ValueError("the coordinator has no rows: remove `scratch`")
        return scratch

    @property
    def scratch_folder(self) -> Path:
        """The folder for rows that do not fit in memory."""
        return self.scratch.folder or self.state

    @field_validator("engine")
    @classmethod
    def _check_engine(cls, engine: EngineConfig, info: ValidationInfo) -> EngineConfig:
        if engine.kind != "local" and info.data.get("role") is Role.COORDINATOR:
            raise ValueError("the coordinator has no rows to compute on: remove `engine`")
        return engine

    @field_validator("online")
    @classmethod
    def _check_online(cls, online: OnlineConfig, info: ValidationInfo) -> OnlineConfig:
        role = info.data.get("role")
        if role is Role.COORDINATOR:
            raise ValueError("the coordinator scores nothing: remove `online`")
        for name in online.model_fields_set:
            if role is not None and (name == "precompute") is (role is Role.GUEST):
                other = Role.HOST if role is Role.GUEST else Role.GUEST
                raise ValueError(f"this is a setting of the {other} alone: remove `{name}`")
        if len({(each.job, each.dataset) for each in online.precompute}) < len(online.precompute):
            raise ValueError("`precompute` has an entry twice: remove one of them")
        return online

    @field_validator("ui")
    @classmethod
    def _check_ui(cls, ui: UiConfig, info: ValidationInfo) -> UiConfig:
        if info.data.get("plaintext") and ui.clients:
            raise ValueError("there are no certificates with `plaintext: true`: remove `clients`, or use `tls` instead")
        if ui.listen is not None and not ui.clients and not is_loopback_address(ui.listen):
            raise ValueError(
                "`listen` is not a loopback address: list in `clients` whose certificates may open the page, or use "
                "localhost, 127.0.0.1 or [::1], such as 127.0.0.1:8080"
            )
        if ui.allow_changes and not ui.clients and not info.data.get("plaintext"):
            raise ValueError(
                "`allow_changes` lets whoever opens the page start and stop jobs: list in `clients` whose certificates "
                "may open it"
            )
        for role, peer in info.data.get("peers", {}).items():
            if peer.certificate_name in ui.clients:
                raise ValueError(
                    f"{peer.certificate_name} in `clients` is the name of the {role}, another organisation: remove it"
                )
        if ui.listen is not None and info.data.get("role") is Role.COORDINATOR:
            own = info.data.get("listen", "")
            if own.endswith(":0"):
                raise ValueError(
                    f"the page asks the coordinator at `listen`, but {own} leaves its port open: set a port"
                )
        return ui

    @model_validator(mode="after")
    def _check_security(self) -> "ProcessConfig":
        if self.tls is None and not self.plaintext:
            raise ValueError(
                "`tls` is missing: set certificate, key and authorities (`trilateral certs` creates them); or, for a "
                "trial on this machine only, set `plaintext: true`, which lets anyone on it read and impersonate"
            )
        if self.tls is not None and self.plaintext:
            raise ValueError("`tls` and `plaintext: true` cannot be combined: remove one of them")
        return self
