"""Work in a process of its own: its parts arrive, its errors are public, and nothing of it is left."""

import asyncio
import io
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from trilateral.common.base.errors import DataError, PeerError
from trilateral.common.ui import apart


def done(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], **request: Any) -> list[dict[str, Any]]:
    """Do some work in this process, and return the lines of the answer."""
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(request)))
    apart.main()
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_a_check_yields_its_findings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "guest.yaml"
    path.write_text("role: guest\n")
    *parts, last = done(monkeypatch, capsys, work="check", source=str(path))
    assert {part["part"]["level"] for part in parts} == {"problem", "note"}
    assert last == {"end": True}


def test_a_report_of_an_unknown_job_is_a_public_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = {
        "role": "guest",
        "plaintext": True,
        "listen": "127.0.0.1:1",
        "peers": {"host": "127.0.0.1:2", "coordinator": "127.0.0.1:3"},
        "state": str(tmp_path),
    }
    (last,) = done(monkeypatch, capsys, work="report", config=config, job="credit")
    assert "credit" in last["error"]


def test_an_unexpected_error_is_told_without_its_text(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> Iterator[str]:
        raise ValueError("secret value of a row")

    monkeypatch.setattr(apart, "WORK", {"fail": fail})
    (last,) = done(monkeypatch, capsys, work="fail")
    assert "ValueError" in last["error"]
    assert "secret" not in last["error"]


@pytest.mark.parametrize(
    ("program", "error", "text"),
    [
        ('print(\'{"error": "no such table"}\')', DataError, "no such table"),
        ("pass", PeerError, "ended too early"),
        ("import time; print('{\"part\": 1}', flush=True); time.sleep(100)", PeerError, "longer than 1 s"),
    ],
)
async def test_work_that_does_not_succeed_says_why(
    program: str, error: type[Exception], text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "program.py").write_text(program)
    monkeypatch.setattr(apart, "__name__", "program")
    monkeypatch.setattr(apart, "SECONDS", 1.0)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(error, match=text):
        async for _ in apart.run_apart("anything"):
            pass


async def test_the_process_ends_with_whoever_waits_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "program.py").write_text("import time; print('{\"part\": 1}', flush=True); time.sleep(100)")
    monkeypatch.setattr(apart, "__name__", "program")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    begun: list[asyncio.subprocess.Process] = []
    create = asyncio.create_subprocess_exec

    async def recording(*arguments: Any, **options: Any) -> asyncio.subprocess.Process:
        begun.append(await create(*arguments, **options))
        return begun[-1]

    monkeypatch.setattr(asyncio, "create_subprocess_exec", recording)
    work = apart.run_apart("anything")
    assert await anext(work) == 1
    # Its own rounds come first.
    assert os.getpriority(os.PRIO_PROCESS, begun[0].pid) > os.getpriority(os.PRIO_PROCESS, 0)
    await work.aclose()  # type: ignore[attr-defined]
    assert begun[0].returncode is not None
