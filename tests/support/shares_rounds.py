"""What the rounds of a training on shares were about, read from its traffic as nobody in a real job can."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest

from tests.support.three_machines import Outcome
from trilateral.common.base.arrays import FloatVector, Rows
from trilateral.common.base.roles import PARTIES, Role
from trilateral.common.protocol.messages import BeginRound, ObservationRecord, WeightShares
from trilateral.common.protocol.shares import arithmetic, bounds, information, rows
from trilateral.common.protocol.shares.rows import RowPlan
from trilateral.common.shares.format import Format
from trilateral.common.shares.ring import decode


@dataclass(frozen=True, eq=False)
class SharedRound:
    """One round that was not void."""

    asked: BeginRound
    """As the host was asked."""
    point: FloatVector
    holdout_point: FloatVector | None
    seen: ObservationRecord


def read_rounds(outcome: Outcome, fmt: Format) -> Iterator[SharedRound]:
    """Add up both parties' shares of each point."""
    begun: dict[int, dict[Role, BeginRound]] = {}
    for _, to, message in outcome.traffic:
        if isinstance(message, BeginRound) and not message.over:
            begun.setdefault(message.key.round, {})[to] = message
        elif isinstance(message, ObservationRecord) and message.loss is not None:
            asked = begun[message.round]
            n_columns = 0 if message.gradient is None else len(message.gradient)
            points = [_point(asked, fmt, name) for name in ("weights", "holdout")]
            first = np.zeros(n_columns) if points[0] is None else points[0]
            yield SharedRound(asked[Role.HOST], first, points[1], message)


def _point(asked: dict[Role, BeginRound], fmt: Format, name: str) -> FloatVector | None:
    shares: list[WeightShares] = [getattr(asked[party].shares, name) for party in PARTIES]
    if shares[0] is None:
        assert shares[1] is None
        return None
    return decode(shares[0].score + shares[1].score, fmt.f_w) * fmt.series.period / 32


def cut_small(monkeypatch: pytest.MonkeyPatch, block_rows: int = 32, window: int = 3) -> None:
    """Let blocks and windows be so small that a small table has many, and let tasks travel whatever their size."""
    for module in (arithmetic, bounds, information, rows):
        monkeypatch.setattr(module, "BLOCK_ROWS", block_rows)
    monkeypatch.setattr(bounds, "MIN_WINDOW", window)
    for module in (arithmetic, bounds, information):
        monkeypatch.setattr(module, "WINDOW_BYTES", 0)
    monkeypatch.setattr(arithmetic, "_PIECE_ELEMENTS", 0)
    monkeypatch.setattr(arithmetic, "MIN_AWAY_COLUMNS", 0)


def rows_in_order(plan: RowPlan) -> Rows:
    """The training rows by section, shape (n_train,)."""
    order = plan.draw_order()
    return np.arange(plan.batches.n_train) if order is None else order
