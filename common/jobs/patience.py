"""How long a process waits for the next message of a job, and what it does if none comes.

A time limit is for a job that stands still. Whatever shows that the job progresses starts it anew: a part of an
alignment, a batch of a table that a party has read, or rows of a round that a party is done with. The coordinator
learns all of these, and tells a waiting party. So a large job takes as long as it takes.
"""

from collections import deque
from collections.abc import Callable, Hashable

from trilateral.common.base.errors import PeerError
from trilateral.common.base.roles import Role
from trilateral.common.config.process import Limits
from trilateral.common.protocol.messages import BeginRound, FinishJob, OpenJob, RoundKey, RoundTimedOut

Question = OpenJob | BeginRound | FinishJob
"""A message to which the coordinator expects an answer from the party."""
ASK_SECONDS = 2.0
"""Maximum interval at which a waiting process asks its peers for a sign of life. The answer shows if a peer was
restarted."""
MIN_ASK_SECONDS = 1.0
"""Minimum interval. Between the two, the interval is a tenth of the peer timeout."""
RECENT_ROUNDS = 20
STEPS = 1000
"""A stage before the first round restarts the time limit at most this often, whatever a party reports."""
MAX_TIMES_LONGER = 10
"""The coordinator waits for a round for at most this many times the longest recent round."""


class Patience:
    """The clock of one job.

    The coordinator waits for answers. Its time limit restarts with each new question and with all progress, and is at
    most `Limits.round_timeout`. Once some rounds have shown how long a round takes, the limit for a round is lower, and
    doubles with each attempt. It is never less than two peer timeouts: a peer that is away for one peer timeout has
    come back by then, or the job has ended.

    A party waits for any message. Its time limit, `Limits.party_timeout`, restarts with each wait, and when the
    coordinator says that the job progresses.

    Args:
        role: the role of this process.
        limits: how long to wait.
        clock: returns seconds since a fixed moment.
    """

    def __init__(self, role: Role, limits: Limits, clock: Callable[[], float]) -> None:
        self._role = role
        self._limits = limits
        self._clock = clock
        self._newest: Question | None = None
        self._asked_at = 0.0
        self._took: deque[float] = deque(maxlen=RECENT_ROUNDS)
        self._done: dict[Hashable, int] = {}
        self._asked_peers_at = clock()
        self._deadline = 0.0
        self._restart()

    def ask(self, question: Question) -> None:
        """At the coordinator: begin to wait for the answer to a question."""
        before, self._newest = self._newest, question
        if before is None or _subject(question) != _subject(before):
            if isinstance(before, BeginRound) and not before.over and not _is_of_round(question, before.key.round):
                self._took.append(self._clock() - self._asked_at)
            self._asked_at = self._clock()
            self._restart()

    def wait(self) -> None:
        """Begin to wait for a message: at a party, restart the time limit.

        A coordinator that has worked beyond its limit looks once for what has come meanwhile.
        """
        if self._role is not Role.COORDINATOR:
            self._restart()
        else:
            now = self._clock()
            if now >= self._deadline:
                self._deadline = now + self.pause

    def is_further(self, work: Hashable, done: float) -> bool:
        """At the coordinator: return whether work before the first round has come further than it was known to be.

        Args:
            work: what is done.
            done: the part of it that is done, from 0 to 1.
        """
        step = int(STEPS * done)
        if not isinstance(self._newest, OpenJob) or step <= self._done.get(work, -1):
            return False
        self._done[work] = step
        return True

    def wait_on(self) -> None:
        """Restart the time limit, because the job progresses."""
        self._restart()

    def asked_peers(self) -> None:
        """Learn that the process has asked its peers for a sign of life."""
        self._asked_peers_at = self._clock()

    @property
    def pause(self) -> float:
        """Seconds between two requests for a sign of life."""
        return min(ASK_SECONDS, max(MIN_ASK_SECONDS, self._limits.peer_timeout / 10))

    def alarm(self) -> float:
        """Return the clock's time of the next alarm: give up then if `is_over`; otherwise ask for a sign of life."""
        return min(self._asked_peers_at + self.pause, self._deadline)

    def is_over(self, alarm: float) -> bool:
        """Return whether the time limit is over at this alarm."""
        return alarm >= self._deadline

    def give_up(self) -> RoundTimedOut:
        """Stop waiting for the current round.

        Returns:
            The message for the coordinator's state machine.

        Raises:
            PeerError: the process waits for something other than a round, so the job fails.
        """
        if self._role is not Role.COORDINATOR:
            raise PeerError(
                f"the {self._role} has received no message of the job for {self._limits.party_timeout:g} s, and the job"
                " has not progressed: check that the coordinator runs and can be reached"
            )
        if not isinstance(self._newest, BeginRound):
            awaited = "finished" if isinstance(self._newest, FinishJob) else "ready"
            raise PeerError(
                f"the parties were not {awaited}, and have made no progress for {self._limits.round_timeout:g} s:"
                " check their logs, or raise limits.round_timeout for all three processes"
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
    """Return what a question has in common with the same question to the other party."""
    return question.key if isinstance(question, BeginRound) else type(question)
