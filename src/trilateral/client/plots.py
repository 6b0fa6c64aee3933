"""The charts of a model on matplotlib axes: `Model.plot`."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from matplotlib.axes import Axes

from trilateral.common.base.errors import ConfigError, DataError
from trilateral.common.data.model.bin_figures import bin_figures
from trilateral.common.data.preprocessing.few_rows import MIN_ROWS
from trilateral.common.report import charts
from trilateral.common.report.drawing import MAX_BINS
from trilateral.common.report.job_files import read_path

if TYPE_CHECKING:
    from trilateral.common.data.model.assessment import EvaluatedSet
    from trilateral.common.data.model.model_file import PartyModel

_CURVE, _SQUARE = (6.4, 4.0), (4.8, 4.6)
"""Width and height of a new figure, in inches."""


class Plots:
    """Draws charts of one party's part of a model. `Model.plot` has it.

    Each method draws on `ax`, or on a new figure without it, and returns the axes. Charts of quality are at the guest,
    and show the rows of one evaluation set in groups of neighbouring scores. Drawing two models on the same axes
    compares them.

    Example:
        >>> ax = first.plot.roc(label="first")  # doctest: +SKIP
        >>> second.plot.roc(ax, label="second")  # doctest: +SKIP
    """

    def __init__(self, part: "PartyModel", path: Path | None) -> None:
        self._part = part
        self._path = path

    def __repr__(self) -> str:
        return f"<Plots of the {self._part.role}'s part of job {self._part.job.name}>"

    def roc(self, ax: Axes | None = None, *, evaluation_set: str | None = None, label: str = "") -> Axes:
        """Draw the ROC curve.

        Args:
            ax: matplotlib axes; by default those of a new figure.
            evaluation_set: name of an evaluation set, such as `test`; the first one by default.
            label: name of the curve in the legend.

        Returns:
            The axes.

        Raises:
            ConfigError: there is no such evaluation set.
            DataError: this is the host's part, or the set has too few rows of a label.
        """
        auc = self._set(evaluation_set).metrics.auc
        return self._quality("ROC curve", charts.draw_roc, ax, evaluation_set, size=_SQUARE, auc=auc, label=label)

    def precision_recall(self, ax: Axes | None = None, *, evaluation_set: str | None = None, label: str = "") -> Axes:
        """Draw the precision by recall; see `roc`."""
        return self._quality("precision and recall", charts.draw_precision_recall, ax, evaluation_set, label=label)

    def ks(self, ax: Axes | None = None, *, evaluation_set: str | None = None) -> Axes:
        """Draw the shares of both labels by score, and their largest difference; see `roc`."""
        ks = self._set(evaluation_set).metrics.ks
        return self._quality("Kolmogorov-Smirnov", charts.draw_ks, ax, evaluation_set, ks=ks)

    def gain(self, ax: Axes | None = None, *, evaluation_set: str | None = None, label: str = "") -> Axes:
        """Draw the share of positive rows among those with the highest scores; see `roc`."""
        return self._quality("gain", charts.draw_gain, ax, evaluation_set, label=label)

    def lift(self, ax: Axes | None = None, *, evaluation_set: str | None = None, label: str = "") -> Axes:
        """Draw how much more frequent positive rows are among those with the highest scores; see `roc`."""
        return self._quality("lift", charts.draw_lift, ax, evaluation_set, label=label)

    def calibration(self, ax: Axes | None = None, *, evaluation_set: str | None = None, label: str = "") -> Axes:
        """Draw the rate of positives by predicted probability, with 95% intervals; see `roc`."""
        return self._quality("calibration", charts.draw_calibration, ax, evaluation_set, size=_SQUARE, label=label)

    def distribution(self, ax: Axes | None = None, *, evaluation_set: str | None = None) -> Axes:
        """Draw the distribution of the score by label; see `roc`."""
        return self._quality("distribution of the score", charts.draw_distribution, ax, evaluation_set)

    def coefficients(self, ax: Axes | None = None) -> Axes:
        """Draw this party's largest weights, with 95% intervals if the job has `inference`.

        Weights are per standard deviation, and per unit for terms of 0 and 1.

        Args:
            ax: matplotlib axes; by default those of a new figure.

        Returns:
            The axes.
        """
        terms = charts.terms_of(self._part)
        size = 6.4, charts.rows_height(len(terms))
        return self._draw(ax, "weights", size, lambda axes: charts.draw_coefficients(axes, terms))

    def bins(self, column: str, ax: Axes | None = None) -> Axes:
        """Draw the bins of one of this party's columns.

        Args:
            column: name of the column.
            ax: matplotlib axes; by default those of a new figure.

        Returns:
            The axes.

        Raises:
            ConfigError: the column has no bins.
        """
        by_column = {each[0].column: each for each in bin_figures(self._part)}
        if column not in by_column:
            have = f"these have: {', '.join(by_column)}" if by_column else "the model has no columns in bins"
            raise ConfigError(f"the column {column!r} has no bins: {have}")
        found = by_column[column]
        size = 6.4, charts.rows_height(len(found), MAX_BINS)
        return self._draw(ax, "bins", size, lambda axes: charts.draw_bins(axes, found))

    def loss(self, ax: Axes | None = None, *, losses: Mapping[int, float | None] | None = None) -> Axes:
        """Draw the loss of each round.

        Args:
            ax: matplotlib axes; by default those of a new figure.
            losses: loss by round, such as those of the snapshots of a run. By default they are read from the history
                beside the model file. Under `protocol: shares`, only the coordinator's history has losses.

        Returns:
            The axes.

        Raises:
            DataError: the history cannot be read.
        """
        known = self._losses() if losses is None else dict(losses)
        rounds = sorted(known)
        return self._draw(
            ax, "loss", _CURVE, lambda axes: charts.draw_loss(axes, rounds, [known[each] for each in rounds])
        )

    def path(self, ax: Axes | None = None) -> Axes:
        """Draw the log loss of each penalty of a cross-validation, or its AUC if the job chose by that.

        Args:
            ax: matplotlib axes; by default those of a new figure.

        Returns:
            The axes.

        Raises:
            DataError: the job has no `folds`, or this is the host's part.
        """
        if not self._part.search:
            raise DataError("there are no penalties to draw: only the guest's part of a job with `folds` has them")
        return self._draw(ax, "penalties", _CURVE, lambda axes: charts.draw_path(axes, self._part.search))

    def _losses(self) -> dict[int, float | None]:
        if self._path is None:
            raise DataError("the model was not read from a file: give the losses of the rounds as `losses`")
        return {int(line["round"]): line.get("loss") for line in read_path(self._path).history}

    def _set(self, name: str | None) -> "EvaluatedSet":
        sets = {each.name: each for each in self._part.evaluation_sets}
        if not sets:
            raise DataError("there is no evaluation to draw: only the guest's part of a job with hold-out rows has one")
        if name is not None and name not in sets:
            raise ConfigError(f"the model has no evaluation set {name!r}: it has {', '.join(sets)}")
        return sets[next(iter(sets)) if name is None else name]

    def _quality(
        self,
        title: str,
        draw: Callable[..., str],
        ax: Axes | None,
        evaluation_set: str | None,
        size: tuple[float, float] = _CURVE,
        **options: object,
    ) -> Axes:
        found = self._set(evaluation_set)
        groups = found.score_groups
        if groups is None:
            raise DataError(
                f"the evaluation set {found.name} cannot be drawn: it has fewer than {2 * MIN_ROWS} rows of a label, no"
                " score divides its rows into groups, or an earlier release wrote the model file"
            )
        return self._draw(ax, f"{title}, {found.name}", size, lambda axes: draw(axes, groups, **options))

    def _draw(self, ax: Axes | None, title: str, size: tuple[float, float], draw: Callable[[Axes], str]) -> Axes:
        if ax is None:
            from matplotlib import pyplot

            _, ax = pyplot.subplots(figsize=size, layout="constrained")
            ax.set_title(f"{self._part.job.name}: {title}", loc="left", fontsize=11)
        draw(ax)
        return ax
