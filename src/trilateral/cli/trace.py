"""How a training has gone so far, in two lines of text: its loss, and the time of this process by kind of work."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from trilateral.cli.wording import decimal
from trilateral.common.base.progress import duration
from trilateral.common.base.roles import Role
from trilateral.common.jobs.folder import JobFolder
from trilateral.common.jobs.history_file import read_history, seconds_by_work
from trilateral.common.process.job_progress import Progress

BARS = "▁▂▃▄▅▆▇█"
MAX_SPREAD = 10.0
"""Losses that differ by a larger factor are drawn on a logarithmic scale."""
MAX_KINDS = 5
"""Kinds of work in a line."""


class Trace:
    """Collects the losses of a job, and reads the history that the own process writes.

    Args:
        folder: the job's folder in the state folder of the own process. The process may run on another machine: then
            there is no history, and no line about the time.
        role: the role of the own process.
        losses: losses of earlier rounds, by round.
    """

    def __init__(self, folder: JobFolder, role: Role, losses: Mapping[int, float] | None = None) -> None:
        self._folder = folder
        self._role = role
        self._losses = dict(losses or {})
        self._seconds: Counter[str] = Counter()
        self._place = 0
        self._rounds = -1

    def add(self, progress: Progress) -> None:
        """Take over what a snapshot says."""
        if progress.loss is not None and progress.round:
            self._losses[progress.round] = progress.loss
        if progress.rounds_done != self._rounds or progress.state.is_final:
            self._rounds = progress.rounds_done
            self._read()

    def lines(self, width: int) -> list[str]:
        """Return the lines of which something is known.

        Args:
            width: characters of the curve of the loss.
        """
        lines = []
        losses = [self._losses[each] for each in sorted(self._losses)]
        if len(losses) > 1:
            lines.append(f"loss {decimal(losses[0], 5)} {sparkline(losses, width)} {decimal(losses[-1], 5)}")
        seconds, total = seconds_by_work([{"seconds": self._seconds}])
        if total > 0:
            kinds = ", ".join(f"{name} {value / total:.0%}" for name, value in list(seconds.items())[:MAX_KINDS])
            lines.append(f"time at the {self._role} {duration(total)}: {kinds}")
        return lines

    def _read(self) -> None:
        while True:
            piece = read_history(self._folder, self._place)
            if piece.is_from_start:
                self._seconds.clear()
            for line in piece.lines:
                self._seconds.update(line.get("seconds", {}))
            self._place = piece.place
            if not piece.is_more:
                return


def sparkline(values: Sequence[float], width: int) -> str:
    """Draw values as a line of bars, the first and the last one included.

    Args:
        values: at least one. One that is not finite is drawn as the highest.
        width: maximum number of bars. With more values, some are left out at equal distances.
    """
    n = min(len(values), width)
    places = [round(place * (len(values) - 1) / max(n - 1, 1)) for place in range(n)]
    shown = [values[place] for place in places]
    finite = [value for value in shown if math.isfinite(value)]
    if not finite:
        return BARS[-1] * n
    low, high = min(finite), max(finite)
    is_log = low > 0 and high > MAX_SPREAD * low

    def height(value: float) -> float:
        return math.log(value) if is_log else value

    span = height(high) - height(low)
    return "".join(
        BARS[-1]
        if not math.isfinite(value)
        else BARS[0]
        if not span
        else BARS[round((height(value) - height(low)) / span * (len(BARS) - 1))]
        for value in shown
    )
