"""Work that a page asks for in a process of its own, so that it takes neither the memory nor the time of the rounds."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

from trilateral.common.base.errors import DataError, PeerError, TrilateralError
from trilateral.common.base.tracebacks import where
from trilateral.common.checks.run import check_process
from trilateral.common.config.process import ProcessConfig
from trilateral.common.config.settings import parse_settings

MAX_LINE_BYTES = 32 * 1024 * 1024
"""Longest line of an answer: a report, as JSON."""
NICENESS = 10
"""By how much the rounds come first where both want a core: they then have nine tenths of it."""
SECONDS = 600.0
"""How long the work may take. A check reads the tables."""


async def run_apart(work: str, **arguments: Any) -> AsyncIterator[Any]:
    """Do some work in another process, and yield each part of its answer as soon as it is there.

    The process ends with the iteration.

    Args:
        work: a name in `WORK`.
        **arguments: for it, in the types of JSON.

    Raises:
        TrilateralError: the work cannot be done.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-W", "ignore", "-m", __name__),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=MAX_LINE_BYTES,
        # gRPC's own messages about a peer that is away would be in this process's log.
        env={**os.environ, "GRPC_VERBOSITY": "NONE"},
    )
    is_whole = False
    with suppress(ProcessLookupError):  # It has ended already.
        os.setpriority(os.PRIO_PROCESS, process.pid, os.getpriority(os.PRIO_PROCESS, 0) + NICENESS)
    try:
        async with asyncio.timeout(SECONDS):
            if process.stdin is None or process.stdout is None:
                raise PeerError("the work could not be started")
            process.stdin.write(json.dumps({"work": work, **arguments}).encode())
            process.stdin.close()
            async for line in process.stdout:
                part = json.loads(line)
                if "error" in part:
                    raise DataError(part["error"])
                if "end" in part:
                    is_whole = True
                else:
                    yield part["part"]
        if not is_whole:
            raise PeerError("the work has ended too early: see the log of this process")
    except TimeoutError:
        raise PeerError(f"the work has taken longer than {SECONDS:g} s") from None
    finally:
        if not is_whole and process.returncode is None:
            # `process.kill` would take the exit status of a process that has just ended from the event loop.
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
        await process.wait()


def main() -> None:
    """Do the work that the standard input names, and write each part of the answer as a line of JSON."""
    request = json.loads(sys.stdin.read())
    try:
        for part in WORK[request.pop("work")](**request):
            _write(part=part)
        _write(end=True)
    except TrilateralError as error:
        _write(error=str(error))
    except Exception as error:  # Its text may quote a row.
        _write(error=f"unexpected error: {where(error)}")


def _write(**fields: Any) -> None:
    sys.stdout.write(f"{json.dumps(fields)}\n")
    sys.stdout.flush()


def _check(source: str) -> Iterator[dict[str, str]]:
    for finding in check_process(Path(source)):
        yield {"level": finding.level.name.lower(), "text": str(finding)}


def _report(config: dict[str, Any], job: str) -> Iterator[str]:
    # Its libraries are an extra.
    from trilateral.common.report.page import report_html

    yield report_html(parse_settings(ProcessConfig, config, "the settings of the running process"), job)


WORK: Mapping[str, Callable[..., Iterator[Any]]] = MappingProxyType({"check": _check, "report": _report})


if __name__ == "__main__":
    main()
