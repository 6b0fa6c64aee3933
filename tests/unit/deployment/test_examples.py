"""The examples for other programs use the names of the configurations and the fields of the audit log."""

import re

import yaml

from tests.support.compose import ROOT
from trilateral.common.base.roles import Role
from trilateral.common.config.load import load_process_config

HOST = load_process_config(ROOT / "configs/three-hosts/guest/process.yaml", {}).peers[Role.HOST]


def test_the_example_for_rsyslog_reads_fields_that_the_audit_log_has() -> None:
    table = (ROOT / "docs/files.md").read_text().partition("## audit.jsonl")[2]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    described = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    read = set(re.findall(r"\$!trilateral!(\w+)", (ROOT / "configs/siem/rsyslog.conf").read_text()))
    assert read == {"certificate", "decision", "method", "reason", "result", "role", "time"}
    assert read <= described


def test_the_example_for_rsyslog_treats_only_ends_as_ends() -> None:
    table = (ROOT / "docs/files.md").read_text().partition("## audit.jsonl")[2]
    (row,) = [line.split("|")[2] for line in table.splitlines() if line.startswith("| `decision`")]
    decisions = set(re.findall(r"`(\w+)`", row))
    named = set(re.findall(r'\$!trilateral!decision == "(\w+)"', (ROOT / "configs/siem/rsyslog.conf").read_text()))
    assert decisions - named == {"ended", "closed"}
    assert named <= decisions


def test_the_examples_for_load_balancer_and_probe_are_for_the_host_of_the_guide() -> None:
    balancer = (ROOT / "configs/load-balancer/haproxy.cfg").read_text()
    assert f"req.ssl_sni -i {HOST.certificate_name}" in balancer
    assert re.search(rf"server host \S+:{HOST.address.rpartition(':')[2]} ", balancer)
    probe = yaml.safe_load((ROOT / "configs/monitoring/blackbox.yml").read_text())["modules"]["trilateral"]
    assert probe["prober"] == "grpc"
    assert probe["grpc"]["tls_config"]["server_name"] == HOST.certificate_name
