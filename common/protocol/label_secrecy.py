"""What keeps the labels from a host that examines its own steps: a secret start, and enough labels for each equation.

In a round on a batch of m rows the host learns X_A'(u_A + u_B - 2y), and it knows X_A and u_A. So each of its columns
gives one equation about X_A'(X_B w_B - 2y), known to some `GRADIENT_BITS` bits. At w_B = 0 these are equations about
the labels alone. The unknown is which k of the m rows have the rarer label: log2 C(m, k) bits, far fewer than m if k is
small.

Therefore the guest starts from secret random weights w_0. Later rounds move w_B by steps that depend on the same sums.
After enough rounds a host can fit everything that the sequence of its steps depends on, except for a shift of w_B. It
then knows, up to a rotation of the guest's columns,

    X_A,p'(X_B,p w_0 - 2 y_p)     for each batch p, with the same w_0 in all batches

Each party is also told the mean loss of each round. With all weights at 0, that loss is log 2 in every batch, whatever
the labels are. So each batch gives one equation about w_0 in which no label occurs. That leaves

    n_secret = max(0, rank(X_B) - n_batches)

numbers behind which the labels can hide, out of n_host n_batches equations. The rank is that of the centred columns,
without the intercept: the host knows the column of ones, and 1'y is an integer, so the start of that weight is one of m
values at most.

Each secret number covers one equation, except for the `shown_bits` of its 28 bits. `LabelSecrecy` counts the rest. The
labels need `policy.min_label_bits` of entropy for each such equation; the default is 2 * `GRADIENT_BITS` bits, a margin
of two.

Other trainings on the same rows add to this. With the same columns on both sides, another start shows nothing new in
the directions that the guest's columns do not reach, and makes the mean over all trainings more exact in the others. A
host that spreads its columns over many trainings gets new equations about the same labels in each, however. So the
equations of all trainings on a dataset must satisfy the rule together: see `trilateral.common.jobs.ledger`.

Under the protocol on shares, the host sees no sums and no steps. It learns its final weights, which solve equations of
the same kind over all training rows, and the final loss. So a training is one batch with an equation for each of the
host's columns and one for the loss. There is no secret start, because a result that depended on it would be wrong.
With folds, the host also learns how many rounds each fit takes: see `told_by`.

Weights of rows can make the labels of a few rows most of a sum. Whether the host knows the weights is not known, so the
rule takes them as known: the entropy shrinks by the share of the rows that count effectively, see `n_effective`.
Weights by label are a function of the labels and change nothing.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from secrets import token_bytes
from typing import Self

import numpy as np

from trilateral.common.base.arrays import FloatRows, FloatVector, SelectedRows, blocks_of
from trilateral.common.config.job import JobConfig
from trilateral.common.protocol.batches import Batch, Batches
from trilateral.common.protocol.sample_weights import n_effective
from trilateral.common.protocol.scales import GRADIENT_BITS

START_SCORE = 0.25
"""Root mean square of the scores X_B w_0 over the training rows, on average over the starts that can be drawn.

A larger start costs `sgd` and `sqn` accuracy if they end after a few epochs: see docs/protocol.md for figures."""

MAX_START_SCORE = 64.0
"""No start has a score beyond this in any training row. Scores must stay below 2^VALUE_BITS = 256, and a start beyond
that would make the first round void each time."""

N_TOLD = 1
"""Numbers that the protocol on shares tells a party beside its own weights: the final loss."""

N_TOLD_OF_PENALTY = 3
"""Numbers that the guest is told about each penalty of a cross-validation: loss, standard error and number of terms."""

MIN_SINGULAR_VALUE = 2.0**-4
"""A direction of X_B counts for the rank if its singular value is at least this share of the largest.

In a weaker direction, w_0 would hide too little; see `shown_bits`."""


def told_by(job: JobConfig, *, with_table: bool) -> int:
    """Return how many equations a job on shares tells a party beside its own weights.

    A party takes part in every round, so it learns how many rounds each fit takes: at most log2(`epochs`) bits. They
    depend on the labels and on the columns of both parties. One training is not counted for its one such number. Bits
    are counted as equations of `GRADIENT_BITS`, rounded up.

    If the guest deals the rows of each label to the folds, the host knows how many rows of a label each fold has, to
    one. That is one equation for each fold.

    Args:
        job: the job.
        with_table: whether the party is told how the penalties compare, as the guest is.
    """
    if job.folds is None:
        return N_TOLD
    n_of_rounds = math.ceil(job.n_fits * math.log2(job.epochs) / GRADIENT_BITS)
    if with_table:
        return N_TOLD + n_of_rounds + N_TOLD_OF_PENALTY * len(job.penalties)
    return N_TOLD + n_of_rounds + (job.folds if job.fold_by == "label" else 0)


def draw_start(columns: FloatRows) -> FloatVector:
    """Draw secret first weights from the randomness of the operating system.

    The weights are independent and uniform. Their range follows from the columns, not from the draw: if each draw was
    scaled to the same size, that size would be one equation about it.

    Args:
        columns: X_B, the guest's training columns, shape (n_train, n_columns).

    Returns:
        w_0, shape (n_columns,).
    """
    n_columns = columns.shape[1]
    # 53 random bits each, in [-1, 1).
    bits = np.frombuffer(token_bytes(8 * n_columns), np.uint64) >> np.uint64(11)
    uniform: FloatVector = bits.astype(np.float64) / 2.0**52 - 1
    size = _unit_score(columns)
    return uniform * (start_score(columns) / size) if size > 0 else uniform


def start_score(columns: FloatRows) -> float:
    """Return the root mean square of the scores X_B w_0 on average over the starts that can be drawn.

    It is `START_SCORE`, or less if some row is so extreme that its score could exceed `MAX_START_SCORE`.

    Args:
        columns: X_B, shape (n_train, n_columns).
    """
    size = _unit_score(columns)
    if size == 0:
        return 0.0
    largest = max(float(np.abs(columns[part]).sum(axis=1).max()) for part in blocks_of(len(columns)))
    return min(START_SCORE, MAX_START_SCORE * size / largest)


def _unit_score(columns: FloatRows) -> float:
    """Return the same for weights between -1 and 1, whose variance is 1/3."""
    squares = sum(float(np.square(columns[part]).sum()) for part in blocks_of(len(columns)))
    return math.sqrt(squares / len(columns) / 3)


def shown_bits(columns: FloatRows) -> float:
    """Return how many bits of an equation a secret number does not hide: 6, or more if the start must be small.

    By chance alone, a component of X_A'X_B w_0 / m is of the order of |X_B w_0| / sqrt(m), and X_A'y / m varies by at
    most 1 / sqrt(m) over all labels. Their ratio is at most 1 / (`start_score` * `MIN_SINGULAR_VALUE`) in the weakest
    direction that counts: 2^6 at `START_SCORE`. In whitened columns it is 4 or less. The mean of many trainings on the
    same rows, each with its own start, shows log2(n) / 2 bits more: with whitened columns, 256 trainings show 6 bits.

    Args:
        columns: X_B, shape (n_train, n_columns).
    """
    score = start_score(columns)
    # Beyond the bits of an equation, there is nothing left to show.
    return min(float(GRADIENT_BITS), -math.log2(score * MIN_SINGULAR_VALUE)) if score > 0 else float(GRADIENT_BITS)


def subset_bits(n_samples: int, n_rare: int) -> float:
    """Return log2 C(m, k), the bits that say which k of m rows have a label.

    Args:
        n_samples: m.
        n_rare: k, from 0 to m.
    """
    ways = math.lgamma(n_samples + 1) - math.lgamma(n_rare + 1) - math.lgamma(n_samples - n_rare + 1)
    return max(0.0, ways / math.log(2))


def effective_rank(columns: FloatRows) -> int:
    """Return the rank of the columns after centring, in directions that count; see `MIN_SINGULAR_VALUE`."""
    n_rows, n_columns = columns.shape
    if not n_rows or not n_columns:
        return 0
    products, mean = np.zeros((n_columns, n_columns)), np.zeros(n_columns)
    for part in blocks_of(n_rows):
        block = columns[part]
        products += block.T @ block / n_rows
        mean += block.sum(axis=0) / n_rows
    largest = np.linalg.eigvalsh(products)[-1]
    squares = np.linalg.eigvalsh(products - np.outer(mean, mean))
    return int(np.count_nonzero(squares > MIN_SINGULAR_VALUE**2 * largest))


@dataclass(frozen=True)
class LabelSecrecy:
    """What the host does not know of the guest's labels before a job."""

    batch_bits: Sequence[float]
    """log2 C(m, k) of each batch."""
    n_secret: int
    """Secret numbers of the start that remain; see the top of this module."""
    shown_bits: float = 6.0
    """Bits that remain visible of an equation that a secret number covers; see the function of that name."""
    n_told: int = 0
    """Equations that a training shows beside those for the host's columns."""
    n_models: int = 1
    """Models that the job fits. Their labels are of one column, so the equations of all count against the labels of the
    model with the least entropy, which are the ones above."""
    has_inference: bool = False
    """Whether the host is told the covariance of its weights: one equation for each pair of its columns."""

    @classmethod
    def of_result(cls, labels: FloatVector, sample_weights: FloatVector | None, n_told: int = N_TOLD) -> Self:
        """Measure the labels of a guest in a training that shows the host only the result, as on shares.

        Args:
            labels: y in {-1, +1}, shape (n_train,).
            sample_weights: shape (n_train,); None if all rows count alike.
            n_told: see `told_by`.
        """
        sides = [labels > 0, labels < 0]
        bits = subset_bits(len(labels), int(np.count_nonzero(sides[0])))
        if sample_weights is not None:
            bits *= min(n_effective(sample_weights[side]) / max(int(np.count_nonzero(side)), 1) for side in sides)
        return cls([bits], n_secret=0, n_told=n_told)

    @classmethod
    def of(cls, columns: FloatRows, labels: FloatVector, batches: Batches, *, secret_start: bool) -> Self:
        """Measure the labels and columns of a guest.

        Args:
            columns: X_B, shape (n_train, n_columns).
            labels: y in {-1, +1}, shape (n_train,).
            batches: the batches of the job.
            secret_start: False for a job that starts at zero.
        """
        parts = [batches.rows(Batch(1, index)) for index in range(batches.count)]
        positives = [int(np.count_nonzero(labels[rows] > 0)) for rows in parts]
        bits = [subset_bits(len(rows), count) for rows, count in zip(parts, positives, strict=True)]
        # With as many batches as columns nothing of the start is left, whatever the ranks are.
        ranks = (
            [effective_rank(SelectedRows(columns, rows)) for rows in parts]
            if secret_start and batches.count < columns.shape[1]
            else [0]
        )
        return cls(bits, max(0, min(ranks) - batches.count), shown_bits(columns))

    def n_equations(self, n_host: int) -> int:
        """Return how many equations about the labels a training shows, without those that the start covers.

        A covered equation counts for the bits of it that remain visible. The sum is rounded up.

        Args:
            n_host: training columns of the host.
        """
        n_shown = n_host * len(self.batch_bits) * self.n_models
        n_covered = min(self.n_secret, n_shown) * (1 - self.shown_bits / GRADIENT_BITS)
        n_pairs = n_host * (n_host + 1) // 2 if self.has_inference else 0
        return math.ceil(round(n_shown - n_covered, 9)) + self.n_told + n_pairs

    def max_equations(self, bits_per_equation: float) -> int:
        """Return how many equations about the labels all trainings may show together.

        Each batch must have the entropy that its share of the equations needs, so the batch with the least entropy
        decides.

        Args:
            bits_per_equation: the entropy that each equation needs, above 0.
        """
        return math.floor(len(self.batch_bits) * min(self.batch_bits) / bits_per_equation)

    def max_host_columns(self, n_left: int) -> int:
        """Return the largest number of columns that a host may have.

        Args:
            n_left: how many equations a training may show.
        """
        # Each of the host's columns gives at least one equation, and the start covers at most `n_secret` of them.
        most = max(n_left, 0) + self.n_secret
        return bisect_right(range(1, most + 1), n_left, key=self.n_equations)
