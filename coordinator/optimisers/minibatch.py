"""What an optimiser that works on mini-batches offers to the search that uses it."""

from typing import Protocol

from trilateral.common.base.arrays import FloatVector


class MinibatchOptimiser(Protocol):
    """Round after round: `direction` at w_k, then `step` from what the round showed there."""

    def direction(self, point: FloatVector) -> FloatVector | None:
        """Take w_k, once a round; return s_t if the round is to answer with v_t."""
        ...

    def step(self, k: int, gradient: FloatVector, curvature: FloatVector | None) -> FloatVector:
        """Return g~_k, with w_{k+1} = w_k - g~_k, and take v_t if it was asked for."""
        ...

    def restart(self) -> None:
        """Halve the learning rate and forget what was learnt from earlier rounds."""
        ...
