"""``trilateral audit verify`` says what it found in a log."""

import hashlib
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from trilateral.cli.main import app
from trilateral.common.base.outcome import Outcome
from trilateral.common.base.roles import Role
from trilateral.common.config.load import load_process_config
from trilateral.common.observe.audit import LOG, Audit
from trilateral.common.observe.audit_chain import log_files
from trilateral.demo.files import write_files

OLD = '{"time": "2026-01-01T00:00:00.000+00:00", "decision": "ended", "job": "old"}\n'
"""A line of release 0.1.0."""


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    addresses = {role: f"127.0.0.1:{port}" for port, role in enumerate(Role, start=50050)}
    return write_files(tmp_path_factory.mktemp("demo"), addresses, 1024, "lbfgs").configs[Role.GUEST]


@pytest.fixture
def log(config: Path) -> Iterator[Path]:
    state = load_process_config(config).state
    state.mkdir(parents=True, exist_ok=True)
    yield state / LOG
    for file in log_files(state / LOG):
        file.unlink(missing_ok=True)


def write(log: Path, *jobs: str, max_bytes: int = 1 << 20) -> None:
    audit = Audit(log, max_bytes=max_bytes)
    audit.open()
    for job in jobs:
        audit.ended(Outcome.FINISHED, job=job)


def verify(config: Path, *options: str) -> Result:
    return CliRunner().invoke(app, ["audit", "verify", "--config", str(config), *options])


def test_a_whole_log_has_the_hash_of_its_last_line(config: Path, log: Path) -> None:
    write(log, "one", "two")
    result = verify(config)
    assert result.exit_code == 0, result.stderr
    assert "lines 1 to 2 are whole" in result.stdout
    digest = result.stdout.split()[-1]
    assert verify(config, "--contains", digest.upper()).exit_code == 0
    assert verify(config, "--contains", hashlib.sha256(b"another").hexdigest()).exit_code == 1


def test_a_hash_that_cannot_be_one_is_a_wrong_command(config: Path, log: Path) -> None:
    write(log, "one")
    result = verify(config, "--contains", "abc")
    assert result.exit_code == 2
    assert "expected 64 hexadecimal digits" in result.stderr


def test_a_changed_line_is_named_and_is_no_wrong_command(config: Path, log: Path) -> None:
    write(log, "one", "two", "three")
    log.write_text(log.read_text().replace("two", "six"))
    result = verify(config)
    assert result.exit_code == 1
    assert "line 3" in result.stderr


def test_lines_without_a_hash_and_torn_lines_are_counted(
    config: Path, log: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log.write_text(OLD)
    write(log, "one", "two")
    with log.open("a") as file:
        file.write('{"time": "2026')
    with caplog.at_level(logging.CRITICAL):
        write(log, "three")
    result = verify(config)
    assert result.exit_code == 0, result.stderr
    assert "1 line has no hash, because release 0.1.0 wrote them" in result.stdout
    assert "1 line is incomplete, as the line after each says" in result.stdout


def test_files_that_were_moved_away_are_told(config: Path, log: Path) -> None:
    write(log, *(f"job-{number}" for number in range(12)), max_bytes=600)
    oldest, *rest = log_files(log)
    assert rest
    oldest.unlink()
    result = verify(config)
    assert result.exit_code == 0, result.stderr
    assert "are not here: their files were moved away" in result.stdout


def test_a_log_without_lines_has_no_hash_yet(config: Path, log: Path) -> None:
    log.touch()
    assert f"{log} has no line with a hash yet" in verify(config).stdout
