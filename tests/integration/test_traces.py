"""The spans that three processes send for one round form one trace."""

import re
import threading
from collections import defaultdict
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.support.three_servers import DATASET, make_configs, serving, train_over_localhost, write_tables
from trilateral.common.base.roles import Role
from trilateral.common.config.job import JobConfig
from trilateral.common.config.process import TracesConfig

ROOT = Path(__file__).parents[2]
JOB = JobConfig(name="traced", dataset=DATASET, epochs=4, key_bits=256)
ATTRIBUTES = {"trilateral.job", "trilateral.role", "trilateral.round", "trilateral.attempt"}
"""Attributes that a span may have, as docs/monitoring.md promises."""
CLOCK_NANOSECONDS = 1_000_000
"""Accepted difference between two clocks of one machine."""


class Collector:
    """Receives exported traces, as a trace collector does."""

    def __init__(self) -> None:
        self.spans: list[tuple[str, Span]] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                assert self.path == "/v1/traces"
                request = ExportTraceServiceRequest.FromString(self.rfile.read(int(self.headers["Content-Length"])))
                for resource in request.resource_spans:
                    (service,) = [
                        each.value.string_value for each in resource.resource.attributes if each.key == "service.name"
                    ]
                    collector.spans += [(service, span) for scope in resource.scope_spans for span in scope.spans]
                self.send_response(200)
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}/v1/traces"
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def collector() -> Iterator[Collector]:
    collector = Collector()
    yield collector
    collector.close()


async def test_each_round_is_one_trace_over_all_three_processes(tmp_path: Path, collector: Collector) -> None:
    write_tables(tmp_path)
    configs = {
        role: config.model_copy(update={"traces": TracesConfig(endpoint=collector.endpoint)})
        for role, config in make_configs(tmp_path).items()
    }
    async with serving(configs) as client:
        status = await train_over_localhost(client, JOB)

    traces: defaultdict[bytes, list[tuple[str, Span]]] = defaultdict(list)
    for service, span in collector.spans:
        traces[span.trace_id].append((service, span))
    assert len(traces) == status.round
    for spans in traces.values():
        assert {service for service, _ in spans} == {f"trilateral-{role}" for role in Role}
        by_id = {span.span_id: span for _, span in spans}
        assert len(by_id) == len(spans)
        (root,) = [span for _, span in spans if not span.parent_span_id]
        number = root.name.removeprefix("round ")
        names = {(service.removeprefix("trilateral-"), span.name) for service, span in spans}
        assert names >= {
            ("coordinator", "BeginRound to the host"),
            ("host", f"round {number} at the host"),
            ("host", "BeginRound from the coordinator"),
            ("host", "encrypt"),
            ("host", "scores to the guest"),
            ("guest", "scores from the host"),
            ("guest", "residual to the host"),
            ("host", "product"),
            ("host", "gradient to the coordinator"),
            ("coordinator", "gradient from the host"),
            ("coordinator", "decrypt"),
        }
        for service, span in spans:
            told = {each.key: each.value for each in span.attributes}
            assert set(told) == ATTRIBUTES
            assert told["trilateral.job"].string_value == JOB.name
            assert f"trilateral-{told['trilateral.role'].string_value}" == service
            assert told["trilateral.round"].int_value == int(number)
            assert told["trilateral.attempt"].int_value >= 1
            assert not span.events
            assert not span.status.message
            assert not any(link.attributes for link in span.links)
            assert span.start_time_unix_nano <= span.end_time_unix_nano
            if span is root:
                continue
            parent = by_id[span.parent_span_id]
            if parent.kind == Span.SPAN_KIND_CONSUMER:  # a kind of work
                assert parent.start_time_unix_nano <= span.start_time_unix_nano + CLOCK_NANOSECONDS
                assert span.end_time_unix_nano <= parent.end_time_unix_nano
            else:
                assert parent is root or parent.name.startswith("round")
            for link in span.links:
                assert span.kind == Span.SPAN_KIND_CONSUMER
                assert by_id[link.span_id].kind == Span.SPAN_KIND_PRODUCER


def test_the_document_names_all_attributes() -> None:
    text = (ROOT / "docs/monitoring.md").read_text().partition("## Traces")[2].partition("## ")[0]
    assert set(re.findall(r"`(trilateral\.\w+)`", text)) == ATTRIBUTES
