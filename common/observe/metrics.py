"""What a process counts and times, for Prometheus: `Metrics` holds the numbers, `scraping` serves them.

Each process object has a registry of its own. Nothing here is an ID, a label or a value of a row, a weight, a
gradient or a key. Whoever may scrape learns the names of running jobs and their mean losses, sizes and times.
"""

import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, disable_created_metrics
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from trilateral.common.base.errors import TrilateralError
from trilateral.common.base.roles import Role
from trilateral.common.observe.events import Event, Moved, PhaseOver, Prepared, RoundBegun, RoundOver, Tell
from trilateral.common.paillier.native.path import arithmetic_path
from trilateral.common.protocol.messages import RoundKey
from trilateral.common.rpc.certificates import Certificates
from trilateral.common.rpc.channel import Peer
from trilateral.common.rpc.errors import STATUS, reason_of
from trilateral.common.rpc.versions import package_version

# Without this, each counter would have a second series that says when it was made.
disable_created_metrics()  # type: ignore[no-untyped-call]

PREFIX = "trilateral_"
LINGER = 300.0
"""Seconds for which an ended job is still shown: a short one would else end between two scrapes."""
MAX_SHOWN = 100
"""Jobs that are shown after their end."""
LOSS_DECIMALS = 6
"""As of an evaluation's figures: with all its bits, a mean over known scores is an equation for single labels."""
ROUND_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 60, 150, 600)
LAG_BUCKETS = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10)

Result = Literal["finished", "stopped", "failed", "suspended"]
NO_ROUND = RoundKey(0, 0)
RESULTS: tuple[Result, ...] = ("finished", "stopped", "failed", "suspended")
"""How sessions of jobs end; suspended is one whose job goes on in another."""


@dataclass
class _Job:
    """What is shown of one job."""

    running: bool = False
    newest: RoundKey = NO_ROUND
    """In this session."""
    begun_at: float = 0.0
    """When that attempt began."""
    loss: float | None = None
    prepared: int = 0
    ended_at: float = 0.0


class Metrics(Collector):
    """The numbers of one process.

    Args:
        role: of the process.
        state: its state folder, on whose disk there should be room.
        clock: seconds from some moment.
    """

    def __init__(self, role: Role, state: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._role = role
        self._state = state
        self._clock = clock
        self._jobs: dict[str, _Job] = {}
        self._free: int | None = None
        self.peers: Mapping[Role, Peer] = {}
        """The other processes that this one calls."""
        self.certificates: Certificates | None = None
        """This process's own."""
        self.registry = CollectorRegistry()
        counter = partial(Counter, registry=self.registry)
        self._sessions = counter(PREFIX + "sessions_begun", "Sessions of jobs begun.")
        self._ended = counter(PREFIX + "sessions_ended", "Sessions of jobs ended, by what became of them.", ["result"])
        self._rounds = counter(PREFIX + "rounds", "Rounds over, by whether they were void.", ["outcome"])
        self._attempts = counter(PREFIX + "round_attempts", "Attempts at rounds, first and further ones.", ["attempt"])
        self._phases = counter(PREFIX + "phase_seconds", "Seconds by kind of work.", ["phase"])
        self._bytes = counter(
            PREFIX + "vector_bytes", "Bytes of encrypted vectors as they travel.", ["direction", "peer", "kind"]
        )
        self._ciphertexts = counter(
            PREFIX + "ciphertexts", "Ciphertexts of encrypted vectors.", ["direction", "peer", "kind"]
        )
        self._refusals = counter(PREFIX + "refusals", "Calls refused, by kind of reason.", ["reason"])
        self._round_seconds = Histogram(
            PREFIX + "round_seconds",
            "Seconds from the beginning of a round's last attempt to its end.",
            buckets=ROUND_BUCKETS,
            registry=self.registry,
        )
        self._lag = Histogram(
            PREFIX + "event_loop_lag_seconds",
            "How late the event loop is, measured each second.",
            buckets=LAG_BUCKETS,
            registry=self.registry,
        )
        # A series that begins at its first event has no increase that an alert could see.
        for metric, values in (
            (self._ended, RESULTS),
            (self._rounds, ("complete", "void")),
            (self._attempts, ("first", "further")),
            (self._refusals, (reason for _, reason in STATUS.values())),
        ):
            for value in values:
                metric.labels(value)
        ProcessCollector(registry=self.registry)
        self.registry.register(self)

    # --- what happens

    def session(self, name: str) -> Tell:
        """Return what a session of the job tells of itself."""
        return partial(self._take, name)

    def begun(self, name: str) -> None:
        """A session of a job begins."""
        job = self._job(name)
        job.running, job.newest = True, NO_ROUND
        self._sessions.inc()

    def ended(self, name: str, result: Result) -> None:
        """A session of a job has ended."""
        job = self._jobs.pop(name, _Job())
        self._jobs[name] = job  # as the newest
        job.running, job.prepared, job.ended_at = False, 0, self._clock()
        self._ended.labels(result).inc()
        self._forget()

    def refused(self, error: TrilateralError) -> None:
        """A call was refused."""
        self._refusals.labels(reason_of(error)).inc()

    def late(self, seconds: float) -> None:
        """The event loop was so late."""
        self._lag.observe(max(seconds, 0.0))

    def look_at_disk(self) -> None:
        """See how much room there is, which takes for ever while the state folder's file system hangs."""
        try:
            self._free = shutil.disk_usage(self._state).free
        except OSError:  # The folder is gone: the jobs say so.
            self._free = None

    def _job(self, name: str) -> _Job:
        return self._jobs.setdefault(name, _Job())

    def _take(self, name: str, event: Event) -> None:
        match event:
            case PhaseOver(name, seconds):
                self._phases.labels(name).inc(seconds)
            case Moved(direction, peer, kind, n_bytes, n_ciphertexts):
                self._bytes.labels(direction, peer.value, kind).inc(n_bytes)
                self._ciphertexts.labels(direction, peer.value, kind).inc(n_ciphertexts)
            case Prepared(n_ciphertexts):
                self._job(name).prepared = n_ciphertexts
            case RoundBegun(key):
                job = self._job(name)
                if key > job.newest:
                    job.newest, job.begun_at = key, self._clock()
                    self._attempts.labels("first" if key.attempt == 1 else "further").inc()
            case RoundOver(key, loss):
                job = self._job(name)
                self._rounds.labels("void" if loss is None else "complete").inc()
                if loss is not None:
                    job.loss = round(loss, LOSS_DECIMALS)
                if key.round == job.newest.round:
                    self._round_seconds.observe(self._clock() - job.begun_at)

    def _forget(self) -> None:
        """Drop the series of jobs that have ended some time ago, or before many others."""
        oldest = self._clock() - LINGER
        ended = [name for name, job in self._jobs.items() if not job.running]
        late = len(ended) - MAX_SHOWN
        for index, name in enumerate(ended):
            if index < late or self._jobs[name].ended_at < oldest:
                del self._jobs[name]

    # --- what is asked for

    def describe(self) -> Iterable[Metric]:
        """See Collector: nothing is collected to find out names."""
        return []

    def collect(self) -> Iterator[Metric]:
        """What is looked up when somebody asks."""
        self._forget()
        jobs = self._jobs
        running = [job for job in jobs.values() if job.running]
        n_training = sum(job.newest.round > 0 for job in running)
        labels = {"role": self._role.value, "version": package_version(), "arithmetic": arithmetic_path()}
        yield _gauge("build_info", "What runs here.", [(labels, 1)])
        yield _gauge(
            "jobs",
            "Jobs that run, by whether their first round in this session has begun.",
            [({"state": "starting"}, len(running) - n_training), ({"state": "training"}, n_training)],
        )
        yield _gauge(
            "round",
            "The newest round of a job.",
            [({"job_name": name}, job.newest.round) for name, job in jobs.items() if job.newest.round],
        )
        yield _gauge(
            "loss",
            "Mean loss of a job's last complete round, in nats per sample.",
            [({"job_name": name}, job.loss) for name, job in jobs.items() if job.loss is not None],
        )
        yield _gauge(
            "prepared_ciphertexts",
            "Ciphertexts for which there is randomness, of all jobs.",
            [({}, sum(job.prepared for job in running))],
        )
        yield _gauge(
            "peer_silence_seconds",
            "Seconds since the oldest call began that a peer has not answered; 0 if there is none.",
            [({"peer": role.value}, peer.silence) for role, peer in self.peers.items()],
        )
        retries = CounterMetricFamily(PREFIX + "call_retries", "Calls made again after a failure.", labels=["peer"])
        for role, peer in self.peers.items():
            retries.add_metric([role.value], peer.retries)
        yield retries
        certificates = [self.certificates] if self.certificates else []
        yield _gauge(
            "certificate_expiry_timestamp_seconds",
            "When this process's certificate expires.",
            [({}, each.expires.timestamp()) for each in certificates],
        )
        free = [] if self._free is None else [self._free]
        yield _gauge("state_free_bytes", "Room on the state folder's disk.", [({}, each) for each in free])


def _gauge(name: str, text: str, values: Iterable[tuple[Mapping[str, str], float]]) -> Metric:
    family = GaugeMetricFamily(PREFIX + name, text)
    for labels, value in values:
        family.add_sample(PREFIX + name, dict(labels), value)
    return family
