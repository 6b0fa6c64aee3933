"""How long one process waits for the next message of a job, and what follows when none comes."""

from collections.abc import Callable

from common.config.process import Limits
from common.errors import PeerError
from common.protocol.messages import BeginRound, FinishJob, OpenJob, RoundKey, RoundTimedOut
from common.roles import Role

Question = OpenJob | BeginRound | FinishJob
"""What the coordinator says to a party in order to get an answer."""
CHECKS = 10
"""How often in a peer timeout, though at most once a second, a process that waits asks whether the others are there."""


class Patience:
    """The clock of one job.

    The coordinator waits for answers: its time, `Limits.round_timeout`, begins with each new question.
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
        self._done = 0
        self._restart()

    def ask(self, question: Question) -> None:
        """As the coordinator, wait for the answer to a question."""
        if self._newest is None or _subject(question) != _subject(self._newest):
            self._restart()
        self._newest = question

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
        return max(1.0, self._limits.peer_timeout / CHECKS)

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
        is_leader = self._role is Role.COORDINATOR
        self._deadline = self._clock() + (self._limits.round_timeout if is_leader else self._limits.party_timeout)


def _subject(question: Question) -> RoundKey | type[Question]:
    """What both parties are asked alike."""
    return question.key if isinstance(question, BeginRound) else type(question)
