"""Counting the answers of online scoring on disk, several at a time.

To write a count takes longer than everything else in an answer. So the answers that come while a count is being written
wait, and share the next one.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from trilateral.common.base.errors import PolicyError
from trilateral.common.base.roles import Role
from trilateral.common.base.tasks import start
from trilateral.common.config.process import ProcessConfig
from trilateral.common.jobs.policy import PREDICTION, check_ids, check_scores, spend_ids, spend_scores
from trilateral.common.jobs.quota import IdQuota, ScoreQuota


@dataclass(frozen=True, eq=False)
class _Counting:
    """An answer that waits for its count."""

    n_ids: int
    n_scores: int
    counted: "asyncio.Future[int]"
    """Gets how many scores are left."""


class OnlineCounts:
    """Counts points that the host is about to answer, each as an ID, and as a score with its reason codes.

    Args:
        config: returns the configuration of the process.
    """

    def __init__(self, config: Callable[[], ProcessConfig]) -> None:
        self._config = config
        self._waiting: list[_Counting] = []
        self._writing: asyncio.Task[None] | None = None

    async def spend(self, n_points: int, n_reasons: int = 0) -> int:
        """Count points before they are answered, and return how many scores are left today.

        Args:
            n_points: how many points. Each counts as an ID.
            n_reasons: how many reason codes each point opens. Each counts as a score, beside the score itself.

        Raises:
            PolicyError: fewer are left. No point may be answered.
            ConfigError: a counter cannot be read or written. No point may be answered.
        """
        counted: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Counting(n_points, n_points * (1 + n_reasons), counted))
        if self._writing is None or self._writing.done():
            self._writing = start(self._write())
        return await counted

    async def _write(self) -> None:
        while self._waiting:
            together, self._waiting = self._waiting, []
            if not await self._write_together(together):
                for each in together:  # The first ones get what is left.
                    await self._write_together([each])

    async def _write_together(self, together: "list[_Counting]") -> bool:
        """Count some answers at once.

        Returns:
            False if there is too little for all of them together, and they have to be counted one by one.
        """
        try:
            left = await self._count(sum(each.n_ids for each in together), sum(each.n_scores for each in together))
        except Exception as error:
            if len(together) > 1 and isinstance(error, PolicyError):
                return False
            for each in together:
                if not each.counted.done():
                    each.counted.set_exception(error)
            return True
        for each in together:
            if not each.counted.done():  # The caller may have hung up. What was counted stays counted.
                each.counted.set_result(left)
        return True

    async def _count(self, n_ids: int, n_scores: int) -> int:
        config = self._config()
        scores, ids = ScoreQuota.of(config), IdQuota.of(config)
        check_scores(n_scores, scores, PREDICTION)
        check_ids(n_ids, ids, Role.HOST, PREDICTION)
        # If one of them fails, the other one has counted too much, and nothing is answered.
        _, left = await asyncio.gather(
            asyncio.to_thread(spend_ids, n_ids, ids, Role.HOST),
            asyncio.to_thread(spend_scores, n_scores, scores, PREDICTION),
        )
        return left
