"""How long one process waits for the next message of a job, and what follows when none comes."""

from collections import deque
from collections.abc import Callable

from trilateral.common.base.errors import PeerError
from trilateral.common.base.roles import Role
from trilateral.common.config.process import Limits
from trilateral.common.protocol.messages import BeginRound, FinishJob, OpenJob, RoundKey, RoundTimedOut

Question = OpenJob | BeginRound | FinishJob
"""What the coordinator says to a party in order to get an answer."""
ASK_SECONDS = 2.0
"""How often a process that waits asks whether the others are there: a peer that was restarted is noticed so."""
MIN_ASK_SECONDS = 1.0
"""However short the peer timeout is, a tenth of which is enough."""
RECENT_ROUNDS = 20
MAX_TIMES_LONGER = 10
"""How many times the longest of the recent rounds the coordinator waits for one."""


class Patience:
    """The clock of one job.

    The coordinator waits for answers: its time begins with each new question. It is `Limits.round_timeout` at the most;
    for a round, less of it once some have shown how long they take, and twice as much in each new attempt. It is never
    shorter than two peer timeouts: a peer that is away for one has come back by then, or the job has ended.

    A party waits for whatever comes: its time, `Limits.party_timeout`, begins with each wait.

    Args:
        role: of this process.
        limits: how long to wait.
        clock: seconds from some moment.
    """

    def __init__(self, role: Role, limits: Limits, clock: Callable[[], float]) -> None:
        self._role = role
        self._limits = limits
        self._clock = clock
        self._newest: Question | None = None
        self._asked_at = 0.0
        self._took: deque[float] = deque(maxlen=RECENT_ROUNDS)
        self._done = 0
        self._restart()

    def ask(self, question: Question) -> None:
        """As the coordinator, wait for the answer to a question."""
        before, self._newest = self._newest, question
        if before is None or _subject(question) != _subject(before):
            if isinstance(before, BeginRound) and not before.over and not _is_of_round(question, before.key.round):
                self._took.append(self._clock() - self._asked_at)
            self._asked_at = self._clock()
            self._restart()

    def wait(self) -> None:
        """Begin to wait for a message."""
        if self._role is not Role.COORDINATOR:
            self._restart()

    def progress(self, done: int) -> None:
        """As the coordinator, hear how far the parties are before they are ready: waiting is worth while."""
        if isinstance(self._newest, OpenJob) and done > self._done:
            self._done = done
            self._restart()

    @property
    def pause(self) -> float:
        """Seconds between two questions whether the others are there."""
        return min(ASK_SECONDS, max(MIN_ASK_SECONDS, self._limits.peer_timeout / 10))

    def alarm(self) -> float:
        """The clock's time at which to see whether the others are there, or `is_over` says that it is enough."""
        return min(self._clock() + self.pause, self._deadline)

    def is_over(self, alarm: float) -> bool:
        """Whether there is no use in waiting longer than to this alarm."""
        return alarm >= self._deadline

    def give_up(self) -> RoundTimedOut:
        """Give up the round that the coordinator waits for.

        Raises:
            PeerError: it is no round, so the job is given up.
        """
        if self._role is not Role.COORDINATOR:
            raise PeerError(
                f"the {self._role} has heard nothing of the job for {self._limits.party_timeout:g} s:"
                " check that the coordinator runs and can be reached"
            )
        if not isinstance(self._newest, BeginRound):
            awaited = "finished" if isinstance(self._newest, FinishJob) else "ready"
            raise PeerError(
                f"the parties were not {awaited} within {self._limits.round_timeout:g} s:"
                " look into their logs, or raise limits.round_timeout at all three processes"
            )
        self._restart()
        return RoundTimedOut(self._newest.key)

    def _restart(self) -> None:
        seconds = self._limits.party_timeout
        if self._role is Role.COORDINATOR:
            seconds = self._limits.round_timeout
            if isinstance(self._newest, BeginRound) and self._took:
                usual = max(MAX_TIMES_LONGER * max(self._took), 2 * self._limits.peer_timeout)
                seconds = min(seconds, usual * 2 ** (self._newest.key.attempt - 1))
        self._deadline = self._clock() + seconds


def _is_of_round(question: Question, number: int) -> bool:
    return isinstance(question, BeginRound) and question.key.round == number


def _subject(question: Question) -> RoundKey | type[Question]:
    """What both parties are asked alike."""
    return question.key if isinstance(question, BeginRound) else type(question)
