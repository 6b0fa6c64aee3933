"""What one session tells becomes spans whose IDs the other processes know too."""

import subprocess
import sys
from pathlib import Path

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.support.three_servers import make_configs
from trilateral.common.base.errors import ConfigError
from trilateral.common.base.roles import Role
from trilateral.common.config.process import TracesConfig
from trilateral.common.observe import traces as traces_module
from trilateral.common.observe.events import Delivered, Handled, Handling, PhaseOver, RoundBegun, RoundOver
from trilateral.common.observe.traces import Traces, open_traces
from trilateral.common.protocol.messages import RoundKey
from trilateral.common.rpc.codec import JobKey

KEY = JobKey.draw("credit")
ROUND = RoundKey(1, 1)


class Clock:
    def __init__(self) -> None:
        self.now = 10**18

    def time_ns(self) -> int:
        return self.now

    def wait(self, seconds: float) -> None:
        self.now += int(seconds * 1e9)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(traces_module, "time", clock)
    return clock


class Process:
    """One process's session, and the spans that it has handed on."""

    def __init__(self, role: Role, key: JobKey = KEY) -> None:
        self._exporter = InMemorySpanExporter()
        self.tell = Traces(role, SimpleSpanProcessor(self._exporter)).session(key)

    @property
    def spans(self) -> dict[str, ReadableSpan]:
        return {span.name: span for span in self._exporter.get_finished_spans()}


def ids(span: ReadableSpan) -> tuple[int, int, int | None]:
    assert span.context is not None
    return span.context.trace_id, span.context.span_id, None if span.parent is None else span.parent.span_id


def length(span: ReadableSpan) -> float:
    assert span.start_time is not None
    assert span.end_time is not None
    return (span.end_time - span.start_time) / 1e9


def test_a_partys_round_is_below_the_coordinators_and_its_work_below_its_own(clock: Clock) -> None:
    leader, party = Process(Role.COORDINATOR), Process(Role.HOST)
    for process in (leader, party):
        process.tell(RoundBegun(ROUND))
    party.tell(Handling(Role.GUEST, "residual", ROUND))
    clock.wait(2)
    party.tell(PhaseOver("product", 1.5))
    party.tell(Handled())
    clock.wait(1)
    party.tell(Delivered(Role.COORDINATOR, "gradient", ROUND, 0.5))
    clock.wait(4)
    for process in (leader, party):
        process.tell(RoundOver(ROUND, 0.5))
    root, own = leader.spans["round 1"], party.spans["round 1 at the host"]
    work, phase = party.spans["residual from the guest"], party.spans["product"]
    sent = party.spans["gradient to the coordinator"]
    assert len({ids(span)[0] for span in (root, own, work, phase, sent)}) == 1
    assert ids(root)[2] is None
    assert ids(own)[2] == ids(root)[1]
    assert ids(work)[2] == ids(sent)[2] == ids(own)[1]
    assert ids(phase)[2] == ids(work)[1]
    assert [length(span) for span in (root, own, work, phase, sent)] == [7, 3, 2, 1.5, 0.5]
    assert work.attributes == {
        "trilateral.job": "credit",
        "trilateral.role": "host",
        "trilateral.round": 1,
        "trilateral.attempt": 1,
    }


def test_what_a_message_leads_to_is_linked_to_its_sending() -> None:
    sender, receiver = Process(Role.GUEST), Process(Role.HOST)
    sender.tell(Delivered(Role.HOST, "residual", ROUND, 0.5))
    receiver.tell(Handling(Role.GUEST, "residual", ROUND))
    receiver.tell(Handled())
    (link,) = receiver.spans["residual from the guest"].links
    sent = sender.spans["residual to the host"]
    assert (link.context.trace_id, link.context.span_id) == ids(sent)[:2]


def test_each_round_of_each_session_is_a_trace_of_its_own() -> None:
    traces = set()
    for key in (KEY, JobKey.draw("credit")):
        for number in (1, 2):
            process = Process(Role.COORDINATOR, key)
            process.tell(RoundBegun(RoundKey(number, 1)))
            process.tell(RoundBegun(RoundKey(number, 2)))
            process.tell(RoundOver(RoundKey(number, 2), None))
            traces.add(ids(process.spans[f"round {number}"])[0])
    assert len(traces) == 4


def test_preparation_in_crumbs_is_one_span_and_the_least_none(clock: Clock) -> None:
    party = Process(Role.HOST)
    party.tell(RoundBegun(ROUND))
    for _ in range(100):
        clock.wait(0.01)
        party.tell(PhaseOver("prepare", 0.009))
    party.tell(Handling(Role.GUEST, "residual", ROUND))
    clock.wait(1)
    party.tell(Handled())
    party.tell(PhaseOver("prepare", 0.0001))
    party.tell(RoundOver(ROUND, 0.5))
    assert length(party.spans["prepare"]) == pytest.approx(0.999)
    assert set(party.spans) == {"prepare", "residual from the guest", "round 1 at the host"}


def test_a_process_without_the_setting_imports_nothing_of_opentelemetry() -> None:
    roles = "trilateral.host_party.server, trilateral.guest_party.server, trilateral.coordinator.server"
    program = f"import sys, {roles}; print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert "trilateral.common.observe.traces" in modules
    assert not [name for name in modules if name.split(".")[0] == "opentelemetry"]


def test_the_setting_without_the_library_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = make_configs(tmp_path)[Role.HOST]
    config = config.model_copy(update={"traces": TracesConfig(endpoint="http://127.0.0.1:4318/v1/traces")})
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(ConfigError, match="^traces.endpoint: OpenTelemetry is not installed"):
        open_traces(config)
