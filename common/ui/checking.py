"""The check of a process, which somebody begins on the page and everybody who has it open follows."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from trilateral.common.base.errors import TrilateralError
from trilateral.common.ui.apart import run_apart


class Check:
    """Checks a process, as `trilateral check` does, once at a time.

    Args:
        source: the file of its configuration; None for a process without a file, which cannot be checked.
        on_change: called when there is something new to show.

    Attributes:
        shown: the last check, in the types of JSON.
    """

    def __init__(self, source: Path | None, on_change: Callable[[], None]) -> None:
        self._source = source
        self._on_change = on_change
        self._task: asyncio.Task[None] | None = None
        self.shown: dict[str, Any] = {"state": "never", "findings": []}

    @property
    def is_possible(self) -> bool:
        """Whether the process can be checked."""
        return self._source is not None

    def begin(self) -> bool:
        """Begin a check; return whether it has begun."""
        is_running = self._task is not None and not self._task.done()
        if self._source is None or is_running:
            return False
        self._task = asyncio.create_task(self._check(str(self._source)))
        return True

    async def close(self) -> None:
        """End a check that runs."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def _check(self, source: str) -> None:
        findings: list[dict[str, str]] = []
        begun = time.time()

        def show(state: str, detail: str = "") -> None:
            levels = Counter(finding["level"] for finding in findings)
            self.shown = {
                "state": state,
                "detail": detail,
                "begun": begun,
                "n_problems": levels["problem"],
                "n_warnings": levels["warning"],
                "findings": list(findings),
            }
            self._on_change()

        show("running")
        try:
            async for finding in run_apart("check", source=source):
                findings.append(finding)
                show("running")
            show("done")
        except TrilateralError as error:
            show("failed", str(error))
