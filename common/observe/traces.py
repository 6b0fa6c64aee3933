"""OpenTelemetry traces: one trace for each round, which combines the spans of the three processes.

The processes exchange nothing for this purpose. The IDs of a trace, of each message and of the spans that other
processes refer to are hashes of what all three know: the session's run ID and the round. A collector that receives the
spans of all three processes shows one trace; a collector that receives the spans of one process shows its part.

OpenTelemetry is imported only if `traces.endpoint` is set.
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
from trilateral.common.observe.events import (
    Delivered,
    Event,
    Handled,
    Handling,
    OnEvent,
    PhaseOver,
    RoundBegun,
    RoundOver,
)
from trilateral.common.protocol.messages import RoundKey
from trilateral.common.rpc.codec import JobKey

if TYPE_CHECKING:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace import SpanProcessor
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

CLOSE_SECONDS = 3.0
"""How long the last spans may take to be sent when the process stops."""
PREPARE = "prepare"
"""The kind of work that is done in small pieces while the process waits; adjacent pieces become one span."""
MAX_GAP = 50_000_000
"""Maximum nanoseconds between two adjacent pieces."""
MIN_SPAN = 1_000_000
"""Minimum nanoseconds of a span of such work."""


def open_traces(config: ProcessConfig) -> "Traces | None":
    """Begin to send a process's traces.

    Args:
        config: the configuration of the process.

    Returns:
        The traces, or None if the configuration names no collector.

    Raises:
        ConfigError: OpenTelemetry is not installed.
    """
    endpoint = config.traces.endpoint
    if endpoint is None:
        return None
    exporter, processor = import_exporter()
    return Traces(config.role, processor(exporter(endpoint)))


def import_exporter() -> "tuple[type[OTLPSpanExporter], type[BatchSpanProcessor]]":
    """Import the classes that send traces.

    Returns:
        The exporter and the span processor.

    Raises:
        ConfigError: OpenTelemetry is not installed.
    """
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        raise ConfigError(
            "traces.endpoint: OpenTelemetry is not installed: run `pip install '.[traces]'` in this project's folder, "
            "or remove the setting"
        ) from None
    return OTLPSpanExporter, BatchSpanProcessor


class Traces:
    """Makes spans from the events of a process's sessions.

    Args:
        role: the role of the process.
        processor: receives the spans.
    """

    def __init__(self, role: Role, processor: "SpanProcessor") -> None:
        from opentelemetry.sdk.resources import Resource

        self.role = role
        self._processor = processor
        self._resource = Resource.create({"service.name": f"trilateral-{role}"})

    def session(self, key: JobKey) -> OnEvent:
        """Return the function that makes spans from the events of one session."""
        return _Session(self, key).on_event

    def close(self) -> None:
        """Send the remaining spans, for at most `CLOSE_SECONDS`."""
        # Without a limit, the processor would wait until a collector that is down comes back.
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
        """Pass a span that is over to the processor.

        Args:
            name: the name of the span.
            trace: ID of the trace that it belongs to.
            span: its own ID.
            parent: ID of the span that contains it; None for a round itself.
            times: its start and end, in nanoseconds since 1970.
            kind: name of its `SpanKind`.
            link: ID of the span, in another process, that it follows from.
            attributes: its attributes.
        """
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
    """One session of a job. Its current round and message are the parents of new spans."""

    def __init__(self, traces: Traces, key: JobKey) -> None:
        self._traces = traces
        self._role = traces.role
        self._key = key
        self._newest = RoundKey(0, 0)
        self._begun = 0
        self._last = 0
        self._handling: tuple[Handling, int, int] | None = None
        """The message that is being handled, the ID of its span and its start."""
        self._prepared: tuple[int, int] | None = None

    def on_event(self, event: Event) -> None:
        """Make a span if the event ends something."""
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
            case Handling():
                self._flush()
                self._handling = (event, secrets.randbits(64) or 1, now)
            case Handled() if self._handling is not None:
                handled, span, begun = self._handling
                self._handling = None
                self._emit(
                    f"{handled.what} from the {handled.sender}",
                    handled.key,
                    (begun, now),
                    span=span,
                    kind="CONSUMER",
                    link=self._message(handled.key, handled.sender, self._role, handled.what),
                )
            case Delivered(peer, what, key, seconds):
                span = self._message(key, self._role, peer, what)
                self._emit(f"{what} to the {peer}", key, _before(now, seconds), span=span, kind="PRODUCER")
            case PhaseOver(name, seconds) if name == PREPARE:
                self._prepare(*_before(now, seconds))
            case PhaseOver(name, seconds):
                handling = self._handling
                if handling is not None:
                    self._emit(name, handling[0].key, _before(now, seconds), parent=handling[1])

    def _round_over(self, now: int) -> None:
        """Make the span of a round. The coordinator's span is the round itself; a party's ends with its last work."""
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
        if before is not None and begun - before[1] < MAX_GAP:
            self._prepared = before[0], ended
        else:
            self._flush()
            self._prepared = begun, ended

    def _flush(self) -> None:
        times, self._prepared = self._prepared, None
        if times is not None and times[1] - times[0] >= MIN_SPAN:
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
        if not key.round:  # before the first round
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

    # --- IDs that are the same in all three processes

    def _trace(self, number: int) -> int:
        return _hash(self._key.run_id, 16, ["trace", number])

    def _round(self, number: int, role: Role) -> int:
        return _hash(self._key.run_id, 8, ["round", number, role.value])

    def _message(self, key: RoundKey, sender: Role, receiver: Role, what: str) -> int:
        return _hash(self._key.run_id, 8, ["message", key.round, key.attempt, sender.value, receiver.value, what])


def _hash(run_id: bytes, size: int, parts: Sequence[Any]) -> int:
    """Return an ID. It is never 0, which OpenTelemetry does not accept as an ID."""
    content = "\n".join(map(str, parts)).encode()
    return int.from_bytes(blake2b(content, key=run_id, digest_size=size).digest()) or 1


def _before(now: int, seconds: float) -> tuple[int, int]:
    return now - int(seconds * 1e9), now
