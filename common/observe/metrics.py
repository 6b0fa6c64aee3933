"""What a process counts and times, for Prometheus: `Metrics` holds the numbers, `scraping` serves them.

Each process object has its own registry. No metric holds an ID, a label or a value of a row, a weight, a gradient
or a key. A reader of the metrics learns the names of running jobs and their mean losses, sizes and times.
"""

import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, disable_created_metrics
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from trilateral.common.base.errors import TrilateralError
from trilateral.common.base.outcome import Outcome
from trilateral.common.base.progress import Stage
from trilateral.common.base.roles import Role
from trilateral.common.compute.engine import Cluster
from trilateral.common.data.model.distributions import Shift
from trilateral.common.observe.events import (
    Direction,
    Event,
    Moved,
    OnEvent,
    PhaseOver,
    Prepared,
    RoundAdvanced,
    RoundBegun,
    RoundOver,
    StageAdvanced,
)
from trilateral.common.paillier.native.path import arithmetic_path
from trilateral.common.protocol.messages import RoundKey
from trilateral.common.rpc.certificates import Certificates
from trilateral.common.rpc.channel import Peer
from trilateral.common.rpc.errors import STATUS, reason_of
from trilateral.common.rpc.versions import package_version

# Without this call, each counter would have a second series with the time when it was created.
disable_created_metrics()  # type: ignore[no-untyped-call]

PREFIX = "trilateral_"
LINGER = 300.0
"""Seconds for which an ended job is still shown; otherwise a short job could begin and end between two scrapes."""
MAX_SHOWN = 100
"""How many jobs are shown after their end."""
LOSS_DECIMALS = 6
"""Decimals of a loss, the same as of an evaluation. At full precision, the mean loss at known scores would be an
equation for the labels."""
ROUND_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 60, 150, 600)
ONLINE_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 1, 5)
LAG_BUCKETS = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10)

NO_ROUND = RoundKey(0, 0)


@dataclass
class _Job:
    """What is shown about one job."""

    running: bool = False
    newest: RoundKey = NO_ROUND
    """The newest attempt at a round in this session."""
    begun_at: float = 0.0
    """When the newest attempt began."""
    rows_done: int = 0
    """Rows of the newest attempt that are done."""
    n_rows: int | None = None
    """All of its rows, if they are known."""
    stage: Stage | None = None
    """What is done before the first round."""
    stage_done: float = 0.0
    loss: float | None = None
    prepared: int = 0
    ended_at: float = 0.0


class Metrics(Collector):
    """The numbers of one process.

    Args:
        role: the role of the process.
        state: its state folder, whose free disk space is a metric.
        clock: returns seconds since a fixed moment.
    """

    def __init__(self, role: Role, state: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._role = role
        self._state = state
        self._clock = clock
        self._jobs: dict[str, _Job] = {}
        self._free: int | None = None
        self._shifts: Mapping[str, Shift] = {}
        self.read_shifts: Callable[[], Mapping[str, Shift]] = dict
        """Reads the newest shift of the rows that each job's model has scored, by name of the job."""
        self.peers: Mapping[Role, Peer] = {}
        """The processes that this one calls."""
        self.certificates: Certificates | None = None
        """The certificates that this process presents and accepts."""
        self.cluster: Cluster | None = None
        """The workers that this process uses."""
        self.registry = CollectorRegistry()
        counter = partial(Counter, registry=self.registry)
        self._sessions = counter(PREFIX + "sessions_begun", "Sessions of jobs that have begun.")
        self._ended = counter(
            PREFIX + "sessions_ended", "Sessions of jobs that have ended, by their outcome.", ["result"]
        )
        self._rounds = counter(
            PREFIX + "rounds", "Rounds that are over, by whether they were complete or void.", ["outcome"]
        )
        self._attempts = counter(
            PREFIX + "round_attempts",
            "Attempts at rounds that have begun, by whether they were the first of their round.",
            ["attempt"],
        )
        self._phases = counter(PREFIX + "phase_seconds", "Seconds spent on each kind of work.", ["phase"])
        self._bytes = counter(
            PREFIX + "vector_bytes",
            "Bytes of vectors of ciphertexts and of ring elements as they travel, sent to and received from peers.",
            ["direction", "peer", "kind"],
        )
        self._bytes_of: dict[tuple[Direction, Role, str], Counter] = {}
        """The series of `_bytes`: to look one up by its labels takes as long as to count a message."""
        self._ciphertexts = counter(
            PREFIX + "ciphertexts",
            "Ciphertexts of encrypted vectors, sent to and received from peers.",
            ["direction", "peer", "kind"],
        )
        self._refusals = counter(
            PREFIX + "refusals", "Calls that this process has refused, by kind of reason.", ["reason"]
        )
        self._points = counter(
            PREFIX + "online_points", "At the host: points of the guest that it has answered, for online scores."
        )
        self._scored = counter(
            PREFIX + "online_rows",
            "At the guest: rows that were asked for online, by result: scored, or which party lacks the ID.",
            ["result"],
        )
        self._online_seconds = Histogram(
            PREFIX + "online_seconds",
            "At the guest: seconds for each answered request for online scores.",
            buckets=ONLINE_BUCKETS,
            registry=self.registry,
        )
        self._round_seconds = Histogram(
            PREFIX + "round_seconds",
            "Seconds from the start of a round's last attempt to the end of the round.",
            buckets=ROUND_BUCKETS,
            registry=self.registry,
        )
        self._lag = Histogram(
            PREFIX + "event_loop_lag_seconds",
            "Seconds by which the event loop is late, measured every second.",
            buckets=LAG_BUCKETS,
            registry=self.registry,
        )
        # Begin each series at 0: if a series began with its first event, an alert would not see that event.
        for metric, values in (
            (self._ended, Outcome),
            (self._rounds, ("complete", "void")),
            (self._attempts, ("first", "further")),
            (self._refusals, (reason for _, reason in STATUS.values())),
            (self._scored, ("scored", "not_at_the_host", "not_at_the_guest")),
        ):
            for value in values:
                metric.labels(value)
        ProcessCollector(registry=self.registry)
        self.registry.register(self)

    # --- what is counted

    def session(self, name: str) -> OnEvent:
        """Return the function that counts the events of a session of the job `name`."""
        return partial(self._count_event, name)

    def begun(self, name: str) -> None:
        """Count a session of the job `name` that begins."""
        job = self._job(name)
        job.running, job.newest, job.stage = True, NO_ROUND, None
        self._sessions.inc()

    def ended(self, name: str, outcome: Outcome) -> None:
        """Count a session of the job `name` that has ended."""
        job = self._jobs.pop(name, _Job())
        self._jobs[name] = job  # as the newest
        job.running, job.prepared, job.ended_at = False, 0, self._clock()
        self._ended.labels(outcome).inc()
        self._forget()

    def refused(self, error: TrilateralError) -> None:
        """Count a call that was refused."""
        self._refusals.labels(reason_of(error)).inc()

    def answered_points(self, n_points: int) -> None:
        """Count points of the guest that the host has answered."""
        self._points.inc(n_points)

    def scored_online(self, seconds: float, lacking: Sequence[Role | None]) -> None:
        """Count a request for online scores at the guest.

        Args:
            seconds: how long it took.
            lacking: for each row, the party that lacks its ID; None if it was scored.
        """
        self._online_seconds.observe(seconds)
        for party in lacking:
            self._scored.labels("scored" if party is None else f"not_at_the_{party.value}").inc()

    def late(self, seconds: float) -> None:
        """Count seconds by which the event loop was late."""
        self._lag.observe(max(seconds, 0.0))

    def look_at_disk(self) -> None:
        """Measure the free space on the state folder's disk, and read the newest shifts.

        If that file system hangs, this call does not return.
        """
        self._shifts = self.read_shifts()
        try:
            self._free = shutil.disk_usage(self._state).free
        except OSError:  # The folder is gone. The jobs report that.
            self._free = None

    def _job(self, name: str) -> _Job:
        return self._jobs.setdefault(name, _Job())

    def _count_event(self, name: str, event: Event) -> None:
        match event:
            case PhaseOver(phase, seconds):
                self._phases.labels(phase).inc(seconds)
            case Moved(direction, peer, kind, n_bytes, n_ciphertexts):
                counter = self._bytes_of.get((direction, peer, kind))
                if counter is None:
                    counter = self._bytes_of[direction, peer, kind] = self._bytes.labels(direction, peer.value, kind)
                counter.inc(n_bytes)
                if n_ciphertexts:
                    self._ciphertexts.labels(direction, peer.value, kind).inc(n_ciphertexts)
            case Prepared(n_ciphertexts):
                self._job(name).prepared = n_ciphertexts
            case RoundBegun(key):
                job = self._job(name)
                if key > job.newest:
                    job.newest, job.begun_at = key, self._clock()
                    job.rows_done, job.n_rows, job.stage = 0, None, None
                    self._attempts.labels("first" if key.attempt == 1 else "further").inc()
            case StageAdvanced(stage, done):
                job = self._job(name)
                job.stage, job.stage_done = stage, done
            case RoundAdvanced(key, rows_done, n_rows):
                job = self._job(name)
                if key == job.newest:
                    job.rows_done, job.n_rows = rows_done, n_rows
            case RoundOver(key, loss):
                job = self._job(name)
                self._rounds.labels("void" if event.is_void else "complete").inc()
                if loss is not None:
                    job.loss = round(loss, LOSS_DECIMALS)
                if key.round == job.newest.round:
                    self._round_seconds.observe(self._clock() - job.begun_at)

    def _forget(self) -> None:
        """Drop the series of jobs that ended more than `LINGER` ago; keep the last `MAX_SHOWN` of the others."""
        oldest = self._clock() - LINGER
        ended = [name for name, job in self._jobs.items() if not job.running]
        late = len(ended) - MAX_SHOWN
        for index, name in enumerate(ended):
            if index < late or self._jobs[name].ended_at < oldest:
                del self._jobs[name]

    # --- what is collected

    def describe(self) -> Iterable[Metric]:
        """Return no metrics. Without this method, the registry would call `collect` to learn the names."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics whose values are looked up at each scrape."""
        self._forget()
        jobs = self._jobs
        running = [job for job in jobs.values() if job.running]
        n_training = sum(job.newest.round > 0 for job in running)
        labels = {"role": self._role.value, "version": package_version(), "arithmetic": arithmetic_path()}
        yield _gauge(
            "build_info", "The role, release and arithmetic of this process; the value is always 1.", [(labels, 1)]
        )
        yield _gauge(
            "jobs",
            "Jobs that run, by whether the first round of their session has begun.",
            [({"state": "starting"}, len(running) - n_training), ({"state": "training"}, n_training)],
        )
        yield _gauge(
            "round",
            "The newest round of a job.",
            [({"job_name": name}, job.newest.round) for name, job in jobs.items() if job.newest.round],
        )
        yield _gauge(
            "round_rows_done",
            "Rows of the newest attempt at a round that this process is done with, or at the coordinator both parties.",
            [({"job_name": name}, job.rows_done) for name, job in jobs.items() if job.newest.round and job.running],
        )
        yield _gauge(
            "round_rows",
            "All rows of the newest attempt at a round, at the coordinator.",
            [({"job_name": name}, job.n_rows) for name, job in jobs.items() if job.n_rows is not None and job.running],
        )
        yield _gauge(
            "stage_done_ratio",
            "The part that is done of what this party does before the first round, by stage.",
            [
                ({"job_name": name, "stage": job.stage.name.lower()}, job.stage_done)
                for name, job in jobs.items()
                if job.stage is not None and job.running
            ],
        )
        yield _gauge(
            "loss",
            "Mean loss of a job's last complete round, in nats per sample.",
            [({"job_name": name}, job.loss) for name, job in jobs.items() if job.loss is not None],
        )
        yield _gauge(
            "prepared_ciphertexts",
            "Ciphertexts for which randomness is ready, over all jobs.",
            [({}, sum(job.prepared for job in running))],
        )
        yield _gauge(
            "peer_silence_seconds",
            "Seconds since the start of the oldest call that the peer has not answered; 0 if it has answered all.",
            [({"peer": role.value}, peer.silence) for role, peer in self.peers.items()],
        )
        retries = CounterMetricFamily(
            PREFIX + "call_retries", "Calls to a peer that were tried again after a failure.", labels=["peer"]
        )
        for role, peer in self.peers.items():
            retries.add_metric([role.value], peer.retries)
        yield retries
        certificates = [self.certificates] if self.certificates else []
        yield _gauge(
            "certificate_expiry_timestamp_seconds",
            "When this process's certificate expires.",
            [({}, each.expires.timestamp()) for each in certificates],
        )
        yield _gauge(
            "score_psi",
            "PSI of the score between hold-out rows and the last rows that the model of a job has scored.",
            [({"job_name": name}, each.psi) for name, each in self._shifts.items() if each.psi is not None],
        )
        yield _gauge(
            "column_csi_max",
            "Largest CSI of a column between training rows and the last rows that the model of a job has scored.",
            [({"job_name": name}, max(each.csi.values())) for name, each in self._shifts.items() if each.csi],
        )
        yield from self._collect_engine()
        free = [] if self._free is None else [self._free]
        yield _gauge("state_free_bytes", "Free bytes on the disk of the state folder.", [({}, each) for each in free])

    def _collect_engine(self) -> Iterator[Metric]:
        if (cluster := self.cluster) is None:
            return
        yield _gauge("engine_workers", "Workers of the cluster that can be used.", [({}, cluster.n_workers)])
        yield _gauge("engine_slots", "Tasks that run at a time on all workers.", [({}, cluster.n_slots)])
        yield _gauge("engine_tasks", "Tasks at the cluster that have no result yet.", [({}, cluster.n_tasks)])
        losses = CounterMetricFamily(
            PREFIX + "engine_tasks_lost", "Tasks that were sent to the cluster again because a worker was gone."
        )
        losses.add_metric([], cluster.n_losses)
        yield losses


def _gauge(name: str, text: str, values: Iterable[tuple[Mapping[str, str], float]]) -> Metric:
    family = GaugeMetricFamily(PREFIX + name, text)
    for labels, value in values:
        family.add_sample(PREFIX + name, dict(labels), value)
    return family
