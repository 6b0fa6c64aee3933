"""The history of a job in one process: a line of JSON for each round, with its times, its traffic and its loss."""

import json
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from trilateral.common.base.roles import Role
from trilateral.common.jobs.folder import JobFolder, writing
from trilateral.common.observe.events import Direction, Moved, OnEvent, PhaseOver, RoundOver, ignore_event
from trilateral.common.protocol.messages import BeginRound, EvaluationRecord, FinishJob, Kind, RoundKey, RoundReport

MAX_ROUNDS_COUNTED = 16
"""How many attempts have counts at the same time. An honest peer is at most a few attempts ahead."""


class Stopwatch:
    """Measures seconds by kind of work: the clock behind a state machine's `Phase`.

    Args:
        on_event: called when a piece of work is done.
    """

    def __init__(self, on_event: OnEvent = ignore_event) -> None:
        self._on_event = on_event
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._since = time.perf_counter()
        self._is_set_up = False

    def end_setup(self) -> None:
        """Count the time so far as `setup`: a session's first round begins. Later calls have no effect."""
        if not self._is_set_up:
            self._is_set_up = True
            self._seconds["setup"] = time.perf_counter() - self._since

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the time spent in the block to `name`. Only one thread at a time may use the stopwatch."""
        start = time.perf_counter()
        try:
            yield
        finally:
            seconds = time.perf_counter() - start
            self._seconds[name] += seconds
            self._on_event(PhaseOver(name, seconds))

    def lap(self) -> dict[str, float]:
        """Return the seconds since the last call: in total as `all`, and by kind of work."""
        now = time.perf_counter()
        lap = {"all": now - self._since, **self._seconds}
        self._seconds, self._since = defaultdict(float), now
        return {name: round(seconds, 6) for name, seconds in lap.items()}


class Traffic:
    """Counts bytes and ciphertexts in one direction: by round and kind, and for the whole job by peer and kind.

    Rounds are counted separately, because a peer may already send for the next round.

    Args:
        direction: what to count, sent or received traffic.
        on_event: called with each chunk of a vector.
    """

    def __init__(self, direction: Direction, on_event: OnEvent = ignore_event) -> None:
        self._direction: Direction = direction
        self._on_event = on_event
        self._rounds: dict[RoundKey, defaultdict[Kind, Counter[str]]] = {}
        self._totals: defaultdict[Role, defaultdict[str, Counter[str]]] = defaultdict(lambda: defaultdict(Counter))

    @property
    def totals(self) -> dict[str, dict[str, dict[str, int]]]:
        """The counts of the whole job so far, by peer and kind. Scores in clear are a separate kind."""
        return {
            peer.value: {kind: dict(counter) for kind, counter in kinds.items()} for peer, kinds in self._totals.items()
        }

    def count(self, peer: Role, key: RoundKey, kind: Kind, n_bytes: int, n_ciphertexts: int) -> None:
        """Add one chunk of a vector.

        Args:
            peer: the other process.
            key: round that the vector belongs to.
            kind: the kind of the vector.
            n_bytes: size of the chunk as it travels.
            n_ciphertexts: number of ciphertexts in it; 0 for ring elements.
        """
        of_round = self._rounds.get(key)
        if of_round is None:
            if len(self._rounds) >= MAX_ROUNDS_COUNTED:
                del self._rounds[min(self._rounds)]
            of_round = self._rounds[key] = defaultdict(Counter)
        for counter in (of_round[kind], self._totals[peer][kind.value]):
            counter["bytes"] += n_bytes
            if n_ciphertexts:
                counter["ciphertexts"] += n_ciphertexts
        self._on_event(Moved(self._direction, peer, kind.value, n_bytes, n_ciphertexts))

    def count_scores(self, peer: Role, n_scores: int) -> None:
        """Add scores of hold-out rows, which travel in clear, to or from a peer."""
        self._totals[peer]["holdout_scores"].update(values=n_scores)

    def count_roles(self, peer: Role, n_rows: int) -> None:
        """Add rows whose roles, which travel in clear, were told to or by a peer."""
        if n_rows:
            self._totals[peer]["row_roles"].update(values=n_rows)

    def pop_round(self, key: RoundKey) -> dict[str, dict[str, int]]:
        """Return what was counted for a round, by kind; forget it and everything of earlier rounds."""
        counted: Mapping[Kind, Counter[str]] = self._rounds.get(key, {})
        self._rounds = {other: kinds for other, kinds in self._rounds.items() if other > key}
        return {kind.value: dict(counter) for kind, counter in counted.items()}


class History:
    """The history file in a job's folder. It has another name until the job has finished.

    A party learns the loss of a round only when the next round begins, and writes the line of the round then.
    Each method raises ConfigError if the file cannot be written.

    Args:
        folder: the folder of the job.
        role: the role of this process.
        resumed: whether to continue the file of the job's earlier sessions.
        hides_loss: at a party, whether the coordinator keeps the losses of the rounds to itself, as with shares. A
            round without a loss is then complete.
        on_event: called with what happens in the session.
    """

    def __init__(
        self,
        folder: JobFolder,
        role: Role,
        *,
        resumed: bool = False,
        hides_loss: bool = False,
        on_event: OnEvent = ignore_event,
    ) -> None:
        self._role = role
        self._hides_loss = hides_loss
        self.on_event = on_event
        self.stopwatch = Stopwatch(on_event)
        self.sent = Traffic("sent", on_event)
        self.received = Traffic("received", on_event)
        self.rounds = 0
        """How many rounds have been written."""
        self._path = folder.history
        self._partial = folder.unfinished_history
        self._round: BeginRound | None = None
        self._evaluated: EvaluationRecord | None = None
        with writing(role, self._partial):
            folder.make()
            if not resumed:
                self._partial.unlink(missing_ok=True)
            elif self._path.exists():
                self._path.replace(self._partial)
            self._partial.touch(mode=0o600)
            _cut_torn_line(self._partial)
            self._over = _last_round_over(self._partial)

    def restore(self, begin: BeginRound) -> None:
        """At a party: continue in the round that the earlier sessions reached, which has no line yet."""
        self._round, self.rounds = begin, begin.key.round - 1

    def begin_round(self, begin: BeginRound) -> None:
        """At a party: begin a round or an attempt. The previous one is over, void or overtaken."""
        before = self._round
        if before is None or begin.key > before.key:
            if before is not None and begin.key.round > before.key.round:
                self._write_over(before, begin.loss)
            elif before is not None:
                self._write_begun(before, None)
            self._round = begin

    def finish(self, finish: FinishJob) -> None:
        """At a party: end the last round."""
        if self._round is not None:
            self._write_over(self._round, finish.round_loss)
            self._round = None

    def evaluate(self, evaluated: EvaluationRecord) -> None:
        """At the guest: add an evaluation on the hold-out rows to the current round."""
        self._evaluated = evaluated

    def report(self, report: RoundReport) -> None:
        """At the coordinator: write the line of a round that is over."""
        evaluation = None
        if report.evaluation is not None:
            evaluation = {"log_loss": report.evaluation.log_loss, "auc": report.evaluation.auc}
        self.on_event(RoundOver(report.key, report.loss))
        self._write(report.key, report.epoch, report.batch, report.loss, evaluation)

    def complete(self) -> None:
        """Give the file its final name, because the job has finished."""
        with writing(self._role, self._path):
            self._partial.replace(self._path)

    def _write_over(self, begun: BeginRound, loss: float | None) -> None:
        """Write the line of a round that is over. The evaluation of a void round does not count."""
        over = RoundOver(begun.key, loss, self._hides_loss)
        if over.is_void:
            self._evaluated = None
        self.on_event(over)
        self._write_begun(begun, loss, is_complete=not over.is_void)

    def _write_begun(self, begun: BeginRound, loss: float | None, *, is_complete: bool = False) -> None:
        evaluation = None
        if self._evaluated is not None and self._evaluated.key == begun.key:
            evaluation = asdict(self._evaluated.metrics)
        self._write(begun.key, begun.batch.epoch, begun.batch.index + 1, loss, evaluation, is_complete=is_complete)

    def _write(
        self,
        key: RoundKey,
        epoch: int,
        batch: int,
        loss: float | None,
        evaluation: dict[str, Any] | None,
        *,
        is_complete: bool = False,
    ) -> None:
        self.rounds = key.round
        line: dict[str, Any] = {
            "round": key.round,
            "attempt": key.attempt,
            "epoch": epoch,
            "batch": batch,
            "loss": loss,
            "seconds": self.stopwatch.lap(),
            "sent": self.sent.pop_round(key),
            "received": self.received.pop_round(key),
        }
        if loss is None and is_complete:
            line["complete"] = True
        if evaluation is not None:
            line["evaluation"] = evaluation
        if key.round == self._over:  # An earlier session wrote it, but ended before the journal had the next round.
            return
        with writing(self._role, self._partial), self._partial.open("ab") as file:
            file.write(f"{json.dumps(line)}\n".encode())


def _cut_torn_line(path: Path) -> None:
    """Remove an incomplete last line, which a killed process may have left."""
    content = path.read_bytes()
    if content and not content.endswith(b"\n"):
        with path.open("r+b") as file:
            file.truncate(content.rfind(b"\n") + 1)


def _last_round_over(path: Path) -> int:
    """Return the round of the last line if that round was complete; otherwise 0.

    A complete round has a loss, or says that it is complete.
    """
    lines = path.read_bytes().splitlines()
    try:
        last = json.loads(lines[-1])
        return 0 if last["loss"] is None and not last.get("complete") else int(last["round"])
    except (IndexError, ValueError, TypeError, KeyError):  # no line, or a line that `History` did not write
        return 0
