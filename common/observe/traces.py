"""OpenTelemetry traces of rounds, one trace for each, in which the three processes' spans come together.

The processes tell each other nothing for it. The IDs of a trace, of the spans that others refer to and of each
message follow by a hash from what all three know, the session's run ID and the round. So whoever collects the spans of
all three sees one trace, and whoever collects those of one has its part.

OpenTelemetry is imported where `traces.endpoint` asks for it, and nowhere else.
"""

import secrets
import threading
import time
from collections.abc import Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from trilateral.common.base.errors import ConfigError
from trilateral.common.base.roles import Role
from trilateral.common.config.process import ProcessConfig
from trilateral.common.observe.events import Delivered, Event, PhaseOver, RoundBegun, RoundOver, Taken, Tell, WorkedOff
from trilateral.common.protocol.messages import RoundKey
from trilateral.common.rpc.codec import JobKey

if TYPE_CHECKING:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace import SpanProcessor
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

CLOSE_SECONDS = 3.0
"""For the last spans to leave when the process stops."""
PREPARE = "prepare"
"""The kind of work that is done in crumbs, while there is nothing else to do: neighbours are one span."""
GAP = 50_000_000
"""Nanoseconds between two of them, at most."""
LEAST = 1_000_000
"""Nanoseconds of one that is worth a span."""


def open_traces(config: ProcessConfig) -> "Traces | None":
    """Return what sends a process's traces to its collector, or None if there is none.

    Raises:
        ConfigError: OpenTelemetry is not installed.
    """
    endpoint = config.traces.endpoint
    if endpoint is None:
        return None
    exporter, processor = import_exporter()
    return Traces(config.role, processor(exporter(endpoint)))


def import_exporter() -> "tuple[type[OTLPSpanExporter], type[BatchSpanProcessor]]":
    """Import what sends traces.

    Raises:
        ConfigError: OpenTelemetry is not installed.
    """
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        raise ConfigError(
            "traces.endpoint: OpenTelemetry is not installed: run `pip install '.[traces]'` in this project's folder, "
            "or take the setting out"
        ) from None
    return OTLPSpanExporter, BatchSpanProcessor


class Traces:
    """Makes spans of what the sessions of a process tell.

    Args:
        role: of the process.
        processor: takes the spans.
    """

    def __init__(self, role: Role, processor: "SpanProcessor") -> None:
        from opentelemetry.sdk.resources import Resource

        self.role = role
        self._processor = processor
        self._resource = Resource.create({"service.name": f"trilateral-{role}"})

    def session(self, key: JobKey) -> Tell:
        """Return what takes the events of one session."""
        return _Session(self, key).take

    def close(self) -> None:
        """Send what is left, for a few seconds at most."""
        # The processor itself would wait for as long as a collector that is away may come back.
        last = threading.Thread(target=self._processor.shutdown, daemon=True)
        last.start()
        last.join(CLOSE_SECONDS)

    def emit(
        self,
        name: str,
        trace: int,
        span: int,
        parent: int | None,
        times: tuple[int, int],
        *,
        kind: str = "INTERNAL",
        link: int | None = None,
        attributes: dict[str, str | int],
    ) -> None:
        """Hand on a span that is over; `times` are its begin and end, nanoseconds since 1970."""
        from opentelemetry.sdk.trace import ReadableSpan
        from opentelemetry.trace import Link, SpanContext, SpanKind, TraceFlags

        def context(span_id: int, *, remote: bool = False) -> SpanContext:
            return SpanContext(trace, span_id, remote, TraceFlags(TraceFlags.SAMPLED))

        self._processor.on_end(
            ReadableSpan(
                name,
                context(span),
                None if parent is None else context(parent),
                self._resource,
                attributes,
                links=[] if link is None else [Link(context(link, remote=True))],
                kind=SpanKind[kind],
                start_time=times[0],
                end_time=times[1],
            )
        )


class _Session:
    """One session of a job: where it is, for the spans' parents."""

    def __init__(self, traces: Traces, key: JobKey) -> None:
        self._traces = traces
        self._role = traces.role
        self._key = key
        self._newest = RoundKey(0, 0)
        self._begun = 0
        self._last = 0
        self._taken: tuple[Taken, int, int] | None = None
        """The message that is worked on, its span and since when."""
        self._prepared: tuple[int, int] | None = None

    def take(self, event: Event) -> None:
        """Make spans of what is over."""
        now = time.time_ns()
        match event:
            case RoundBegun(key) if key > self._newest:
                self._flush()
                if key.round > self._newest.round:
                    self._begun = self._last = now
                self._newest = key
            case RoundOver(key) if key.round == self._newest.round:
                self._flush()
                self._round_over(now)
            case Taken():
                self._flush()
                self._taken = (event, secrets.randbits(64) or 1, now)
            case WorkedOff() if self._taken is not None:
                taken, span, begun = self._taken
                self._taken = None
                self._emit(
                    f"{taken.what} from the {taken.sender}",
                    taken.key,
                    (begun, now),
                    span=span,
                    kind="CONSUMER",
                    link=self._message(taken.key, taken.sender, self._role, taken.what),
                )
            case Delivered(peer, what, key, seconds):
                span = self._message(key, self._role, peer, what)
                self._emit(f"{what} to the {peer}", key, _before(now, seconds), span=span, kind="PRODUCER")
            case PhaseOver(name, seconds) if name == PREPARE:
                self._prepare(*_before(now, seconds))
            case PhaseOver(name, seconds):
                taken_now = self._taken
                if taken_now is not None:
                    self._emit(name, taken_now[0].key, _before(now, seconds), parent=taken_now[1])

    def _round_over(self, now: int) -> None:
        """The coordinator's span is the round itself; a party's ends with the last that it did in the round."""
        number, is_leader = self._newest.round, self._role is Role.COORDINATOR
        self._traces.emit(
            f"round {number}" if is_leader else f"round {number} at the {self._role}",
            self._trace(number),
            self._round(number, self._role),
            None if is_leader else self._round(number, Role.COORDINATOR),
            (self._begun, now if is_leader else self._last),
            attributes=self._attributes(self._newest),
        )

    def _prepare(self, begun: int, ended: int) -> None:
        before = self._prepared
        if before is not None and begun - before[1] < GAP:
            self._prepared = before[0], ended
        else:
            self._flush()
            self._prepared = begun, ended

    def _flush(self) -> None:
        times, self._prepared = self._prepared, None
        if times is not None and times[1] - times[0] >= LEAST:
            self._emit(PREPARE, self._newest, times)

    def _emit(
        self,
        name: str,
        key: RoundKey,
        times: tuple[int, int],
        *,
        span: int | None = None,
        parent: int | None = None,
        kind: str = "INTERNAL",
        link: int | None = None,
    ) -> None:
        if not key.round:  # before the first
            return
        if key.round == self._newest.round:
            self._last = max(self._last, times[1])
        self._traces.emit(
            name,
            self._trace(key.round),
            span or secrets.randbits(64) or 1,
            parent or self._round(key.round, self._role),
            times,
            kind=kind,
            link=link,
            attributes=self._attributes(key),
        )

    def _attributes(self, key: RoundKey) -> dict[str, str | int]:
        return {
            "trilateral.job": self._key.name,
            "trilateral.role": self._role.value,
            "trilateral.round": key.round,
            "trilateral.attempt": key.attempt,
        }

    # --- IDs that all three know

    def _trace(self, number: int) -> int:
        return _hash(self._key.run_id, 16, ["trace", number])

    def _round(self, number: int, role: Role) -> int:
        return _hash(self._key.run_id, 8, ["round", number, role.value])

    def _message(self, key: RoundKey, sender: Role, receiver: Role, what: str) -> int:
        return _hash(self._key.run_id, 8, ["message", key.round, key.attempt, sender.value, receiver.value, what])


def _hash(run_id: bytes, size: int, parts: Sequence[Any]) -> int:
    """An ID, which is never 0: OpenTelemetry takes that for none."""
    content = "\n".join(map(str, parts)).encode()
    return int.from_bytes(blake2b(content, key=run_id, digest_size=size).digest()) or 1


def _before(now: int, seconds: float) -> tuple[int, int]:
    return now - int(seconds * 1e9), now
