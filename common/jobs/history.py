"""What one process writes down of a job: a line of JSON for each round."""

import json
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from trilateral.common.base.roles import Role
from trilateral.common.jobs.folder import JobFolder, writing
from trilateral.common.observe.events import Direction, Moved, PhaseOver, RoundOver, Tell, tell_nobody
from trilateral.common.protocol.messages import BeginRound, EvaluationRecord, FinishJob, Kind, RoundKey, RoundReport


class Stopwatch:
    """Seconds by kind of work: the clock behind a state machine's `Phase`."""

    def __init__(self, tell: Tell = tell_nobody) -> None:
        self._tell = tell
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._since = time.perf_counter()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the time inside to `name`. One thread at a time."""
        start = time.perf_counter()
        try:
            yield
        finally:
            seconds = time.perf_counter() - start
            self._seconds[name] += seconds
            self._tell(PhaseOver(name, seconds))

    def take(self) -> dict[str, float]:
        """The seconds since the last call, in all and by kind."""
        now = time.perf_counter()
        taken = {"all": now - self._since, **self._seconds}
        self._seconds, self._since = defaultdict(float), now
        return {name: round(seconds, 6) for name, seconds in taken.items()}


class Traffic:
    """Bytes and ciphertexts in one direction, by round and kind, and of the whole job by peer and kind.

    By round, since a peer may already send for the next one.
    """

    def __init__(self, direction: Direction, tell: Tell = tell_nobody) -> None:
        self._direction: Direction = direction
        self._tell = tell
        self._rounds: dict[RoundKey, dict[Kind, Counter[str]]] = {}
        self._totals: dict[Role, dict[str, Counter[str]]] = {}

    @property
    def totals(self) -> dict[str, dict[str, dict[str, int]]]:
        """Of the whole job so far, by peer and kind; scores in clear are a kind of their own."""
        return {
            peer.value: {kind: dict(counter) for kind, counter in kinds.items()} for peer, kinds in self._totals.items()
        }

    def count(self, peer: Role, key: RoundKey, kind: Kind, n_bytes: int, n_ciphertexts: int) -> None:
        """Add one chunk of a vector to or from a peer; bytes as it travels."""
        amounts = {"bytes": n_bytes, "ciphertexts": n_ciphertexts}
        self._rounds.setdefault(key, {}).setdefault(kind, Counter()).update(amounts)
        self._total(peer, kind.value).update(amounts)
        self._tell(Moved(self._direction, peer, kind.value, n_bytes, n_ciphertexts))

    def count_scores(self, peer: Role, n_scores: int) -> None:
        """Add scores of hold-out rows, which travel in clear."""
        self._total(peer, "holdout_scores").update(values=n_scores)

    def _total(self, peer: Role, kind: str) -> Counter[str]:
        return self._totals.setdefault(peer, {}).setdefault(kind, Counter())

    def take(self, key: RoundKey) -> dict[str, dict[str, int]]:
        """What was counted for a round; forgets it and whatever is older."""
        taken = self._rounds.get(key, {})
        self._rounds = {other: kinds for other, kinds in self._rounds.items() if other > key}
        return {kind.value: dict(counter) for kind, counter in taken.items()}


class History:
    """The history file in a job's folder, which has another name until the job has finished.

    A party learns the loss of a round with the next one, so that is when it writes the round's line.
    Each method raises ConfigError if the file cannot be written.
    """

    def __init__(self, folder: JobFolder, role: Role, *, resumed: bool = False, tell: Tell = tell_nobody) -> None:
        """Begin the file, or go on with it in a session that is not the job's first; `tell` hears what is timed."""
        self._role = role
        self.tell = tell
        self.stopwatch = Stopwatch(tell)
        self.sent = Traffic("sent", tell)
        self.received = Traffic("received", tell)
        self.rounds = 0
        """How many have been written down."""
        self._path = folder.history
        self._partial = folder.unfinished_history
        self._round: BeginRound | None = None
        self._evaluated: EvaluationRecord | None = None
        self._written = RoundKey(0, 0)  # in an earlier session
        with writing(role, self._partial):
            folder.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not resumed:
                self._partial.unlink(missing_ok=True)
            elif self._path.exists():
                self._path.replace(self._partial)
            self._partial.touch(mode=0o600)
            _cut_torn_line(self._partial)

    def restore(self, begin: BeginRound) -> None:
        """At a party: continue in the round that an earlier session came to.

        The round usually has no line yet. It has one if that session ended after it wrote the line and before the
        journal took up the next step, which then comes again.
        """
        self._written = _last_key(self._partial)
        self._round, self.rounds = begin, max(begin.key.round - 1, self._written.round)

    def begin_round(self, begin: BeginRound) -> None:
        """At a party: a round begins, so the one before is over, void or overtaken."""
        before = self._round
        if before is None or begin.key > before.key:
            if before is not None and begin.key.round > before.key.round:
                self._write_over(before, begin.loss)
            elif before is not None:
                self._write_begun(before, None)
            self._round = begin

    def finish(self, finish: FinishJob) -> None:
        """At a party: the last round is over."""
        if self._round is not None:
            self._write_over(self._round, finish.round_loss)
            self._round = None

    def evaluate(self, evaluated: EvaluationRecord) -> None:
        """At the guest: the round under way has shown how good its point is on the hold-out rows."""
        self._evaluated = evaluated

    def report(self, report: RoundReport) -> None:
        """At the coordinator: a round is over."""
        evaluation = None
        if report.evaluation is not None:
            evaluation = {"log_loss": report.evaluation.log_loss, "auc": report.evaluation.auc}
        self.tell(RoundOver(report.key, report.loss))
        self._write(report.key, report.epoch, report.batch, report.loss, evaluation)

    def complete(self) -> None:
        """The job has finished: give the file its name."""
        with writing(self._role, self._path):
            self._partial.replace(self._path)

    def _write_over(self, begun: BeginRound, loss: float | None) -> None:
        """A round without a loss was void, and has evaluated nothing."""
        if loss is None:
            self._evaluated = None
        self.tell(RoundOver(begun.key, loss))
        self._write_begun(begun, loss)

    def _write_begun(self, begun: BeginRound, loss: float | None) -> None:
        if begun.key <= self._written:
            return
        evaluation = None
        if self._evaluated is not None and self._evaluated.key == begun.key:
            evaluation = asdict(self._evaluated.metrics)
        self._write(begun.key, begun.batch.epoch, begun.batch.index + 1, loss, evaluation)

    def _write(
        self, key: RoundKey, epoch: int, batch: int, loss: float | None, evaluation: dict[str, Any] | None
    ) -> None:
        self.rounds = key.round
        line: dict[str, Any] = {
            "round": key.round,
            "attempt": key.attempt,
            "epoch": epoch,
            "batch": batch,
            "loss": loss,
            "seconds": self.stopwatch.take(),
            "sent": self.sent.take(key),
            "received": self.received.take(key),
        }
        if evaluation is not None:
            line["evaluation"] = evaluation
        with writing(self._role, self._partial), self._partial.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def _last_key(path: Path) -> RoundKey:
    """Return the round and attempt of a history's last line; zeros for an empty history."""
    lines = path.read_bytes().splitlines()
    if not lines:
        return RoundKey(0, 0)
    last = json.loads(lines[-1])
    return RoundKey(last["round"], last["attempt"])


def _cut_torn_line(path: Path) -> None:
    """Take away what a process that was killed has written of its last line."""
    content = path.read_bytes()
    if content and not content.endswith(b"\n"):
        with path.open("r+b") as file:
            file.truncate(content.rfind(b"\n") + 1)
