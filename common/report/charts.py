"""The charts of a model, of its training and of its columns, each drawn on matplotlib axes that the caller passes.

Each function returns a sentence that says what the chart shows, for those who cannot see it. Charts of quality are
drawn from `ScoreGroups`, which holds no score or label of a row.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from trilateral.common.base.arrays import FloatVector
from trilateral.common.base.progress import duration
from trilateral.common.data.model.bin_figures import BinFigures
from trilateral.common.data.model.distributions import LARGE, NOTEWORTHY
from trilateral.common.data.model.export import weights_of
from trilateral.common.data.model.model_file import ComparedPenaltyRow, PartyModel, is_by_auc
from trilateral.common.data.model.score_groups import Curve, ScoreGroups
from trilateral.common.report.drawing import (
    FIRST,
    MAX_BINS,
    MAX_ROWS,
    PALETTE,
    REFERENCE,
    SECOND,
    SMALL,
    ink,
    logarithmic,
    name_of,
    name_point,
    nothing,
    percent,
    prepare,
    prepare_rows,
    refer,
    say,
    unit_square,
)

_MAX_POINTS = 1000
"""Rounds of a curve that are drawn one by one. With more, each of 500 stretches shows its least and largest loss."""
_MAX_SPREAD = 30.0
"""A loss that falls by a larger factor is drawn on a logarithmic scale."""
_MAX_LOSS = 1e100
"""A larger loss is drawn as this one: matplotlib cannot add a margin to much larger numbers."""
_MAX_INTERVAL = 4.0
"""An interval that reaches further than this many times the largest weight is cut off at the edge of the chart."""
_DISTRIBUTION_GROUPS = 8, 24
"""The fewest groups of the distribution, if the rows have so many, and the most."""
_ROWS_OF_GROUP = 30
"""Rows of the rarer label in a group of the distribution, on average. Fewer would show mostly chance."""


_Corner = Literal["lower right", "upper right", "upper left"]


@dataclass(frozen=True)
class Term:
    """A term of a model in a chart."""

    name: str
    weight: float
    """Score per unit, or per standard deviation, as the caller chooses for all terms."""
    lower: float | None = None
    """Lower end of the confidence interval; None if it is not known."""
    upper: float | None = None
    """Upper end of it."""

    @property
    def interval(self) -> tuple[float, float] | None:
        """Both ends; None if one is not known."""
        if self.lower is None or self.upper is None or math.isnan(self.lower) or math.isnan(self.upper):
            return None
        return self.lower, self.upper


def rows_height(n_rows: int, most: int = MAX_ROWS) -> float:
    """Return the height, in inches, that suits a chart with a line for each term, column or bin.

    Args:
        n_rows: number of lines.
        most: how many the chart shows; for `draw_bins`, `MAX_BINS`.
    """
    return 1.0 + 0.27 * min(max(n_rows, 1), most + 1)


# --- the quality of a model


def draw_roc(axes: Axes, groups: ScoreGroups, *, auc: float | None = None, label: str = "") -> str:
    """Draw the ROC curve. A further call adds another curve.

    Args:
        axes: where to draw.
        groups: the evaluation rows.
        auc: area under the curve of all rows, which names the curve; None to leave it out.
        label: name of the curve, if there are several.
    """
    _prepare_shares(axes, "negative rows above the threshold", "positive rows above the threshold")
    axes.set_aspect("equal")
    figure = "" if auc is None else f"AUC {auc:.3f}"
    _add_curve(axes, groups.roc, label, figure, "lower right")
    if len(axes.lines) == 1:
        refer(axes, [0, 1], [0, 1])
    wrong, found = (each[1:-1] for each in groups.roc)
    place = int(np.lexsort((-found, np.abs(wrong - 0.1)))[0])
    return (
        f"ROC curve{_of(figure)}. Above one threshold are {found[place]:.0%} of the positive and {wrong[place]:.0%} of"
        " the negative rows."
    )


def draw_precision_recall(axes: Axes, groups: ScoreGroups, *, label: str = "") -> str:
    """Draw the precision by recall. A further call adds another curve; see `draw_roc`."""
    _prepare_shares(axes, "recall: share of positive rows found", "precision: share of positive rows")
    curve = groups.precision_recall
    _add_curve(axes, curve, label, "", "upper right")
    axes.plot(curve.x[0], curve.y[0], "o", color=axes.lines[-1].get_color(), markersize=4)
    if len(axes.lines) == 2:
        refer(axes, [0, 1], [groups.rate, groups.rate])
        say(axes, 0.01, groups.rate, f"all rows: {groups.rate:.1%}", va="bottom")
    half = float(np.interp(0.5, *curve))
    return (
        f"Precision by recall. At a recall of 50% the precision is {half:.0%}; of all rows, {groups.rate:.1%} are"
        " positive."
    )


def draw_ks(axes: Axes, groups: ScoreGroups, *, ks: float | None = None) -> str:
    """Draw which shares of the positive and of the negative rows have at most a score, and the largest gap.

    Args:
        axes: where to draw.
        groups: the evaluation rows.
        ks: the largest gap between all rows; None to leave it out. Between groups it may be smaller.
    """
    score, negative, positive, widest = groups.ks
    prepare(axes, "score u (log-odds)", "rows with at most this score")
    marker = "o" if len(score) <= 20 else ""
    for shares, colour in ((negative, SECOND), (positive, FIRST)):
        axes.plot(score, shares, color=colour, linewidth=2, marker=marker, markersize=4)
    place = int(np.argmin(np.abs(negative - 0.8)))
    name_point(axes, score[place], negative[place], "negative", (-6, 3), color=SECOND, ha="right")
    place = int(np.argmin(np.abs(positive - 0.7)))
    name_point(axes, score[place], positive[place], "positive", (6, -3), color=FIRST, va="top")
    at, top, low = float(score[widest]), float(negative[widest]), float(positive[widest])
    axes.plot([at, at], [low, top], color=ink(), linewidth=1.2, marker="_", markersize=8)
    of_all = "" if ks is None else f"KS {ks:.3f}\n"
    gap = f"{of_all}gap {top - low:.3f}\nat score {at:.3g}"
    say(axes, 0.02, 0.97, gap, transform=axes.transAxes, va="top")
    # The scores of the first and of the last row are not known, but the means of the outer groups are.
    axes.set_xlim(min(score[0], groups.mean_score[0]), max(score[-1], groups.mean_score[-1]))
    axes.set_ylim(0, 1.02)
    percent(axes.yaxis)
    return (
        f"Shares of both labels by score. Between groups, they differ most at the score {at:.3g}: {top:.0%} of the"
        f" negative and {low:.0%} of the positive rows have at most this score, a gap of {top - low:.3f}."
        f"{'' if ks is None else f' Between all rows, KS is {ks:.3f}.'}"
    )


def draw_gain(axes: Axes, groups: ScoreGroups, *, label: str = "") -> str:
    """Draw the share of positive rows among those with the highest scores; see `draw_roc` for several curves."""
    _prepare_shares(axes, "rows with the highest scores", "positive rows among them")
    _add_curve(axes, groups.gain, label, "", "lower right")
    if len(axes.lines) == 1:
        refer(axes, [0, 1], [0, 1])
        refer(axes, [0, groups.rate, 1], [0, 1, 1])
        say(axes, 0.7, 0.66, "chance", va="top")
        say(axes, min(groups.rate, 0.75) + 0.02, 0.98, "perfect order", va="top")
    found = float(np.interp(0.2, *groups.gain))
    return f"Gain. The 20% of the rows with the highest scores have {found:.0%} of the positive rows."


def draw_lift(axes: Axes, groups: ScoreGroups, *, label: str = "") -> str:
    """Draw how much more frequent positive rows are among those with the highest scores; see `draw_roc`."""
    prepare(axes, "rows with the highest scores", "rate of positives over that of all rows")
    curve = groups.lift
    _add_curve(axes, curve, label, "", "upper right")
    axes.plot(curve.x[0], curve.y[0], "o", color=axes.lines[-1].get_color(), markersize=4)
    if len(axes.lines) == 2:
        refer(axes, [0, 1], [1, 1])
        say(axes, 0.01, 1.0, "all rows", va="bottom")
    axes.set_xlim(0, 1)
    axes.set_ylim(0, max(axes.get_ylim()[1], float(curve.y.max()) * 1.08))
    percent(axes.xaxis)
    tenth = float(np.interp(0.1, *curve))
    return (
        f"Lift. Among the 10% of the rows with the highest scores, positive rows are {tenth:.1f} times as frequent as"
        " among all rows."
    )


def draw_calibration(axes: Axes, groups: ScoreGroups, *, label: str = "") -> str:
    """Draw the rate of positives by predicted probability, with 95% intervals; see `draw_roc` for several curves."""
    points = groups.calibration()
    prepare(axes, "mean predicted probability", "share of positive rows")
    is_first = not axes.lines
    colour = _next_colour(axes)
    axes.vlines(points.predicted, points.lower, points.upper, color=colour, alpha=0.45, linewidth=4)
    (line,) = axes.plot(points.predicted, points.observed, color=colour, marker="o", markersize=4, linewidth=1.2)
    _name_curve(axes, line, label, "", "upper left")
    reach = max(float(points.upper.max()), float(points.predicted.max()))
    reach = min(1.02, max(reach * 1.06, 0.0 if is_first else axes.get_xlim()[1]))
    if is_first:
        refer(axes, [0, 1], [0, 1])
        say(axes, 0.98, 0.02, "bars: 95% intervals", transform=axes.transAxes, ha="right", va="bottom")
    axes.set_xlim(0, reach)
    axes.set_ylim(0, reach)
    axes.set_aspect("equal")
    percent(axes.xaxis, axes.yaxis)
    n_right = int(np.sum((points.lower <= points.predicted) & (points.predicted <= points.upper)))
    return (
        f"Calibration. In {n_right} of {len(points.predicted)} groups of rows, the predicted probability is within the"
        " 95% interval of the observed rate."
    )


def draw_distribution(axes: Axes, groups: ScoreGroups) -> str:
    """Draw how the scores of the rows of both labels are distributed."""
    rarer = min(sum(groups.n_positive), sum(groups.n_negative))
    fewest, most = _DISTRIBUTION_GROUPS
    some = groups.merged(max(fewest, min(most, rarer // _ROWS_OF_GROUP)))
    prepare(axes, "score u (log-odds)", "density (share of the label's rows)")
    # The scores of the first and of the last row are not known: the outer groups are symmetric around their means.
    first, last = 2 * some.mean_score[0] - some.bounds[0], 2 * some.mean_score[-1] - some.bounds[-1]
    edges = np.array([min(first, some.bounds[0]), *some.bounds, max(last, some.bounds[-1])])
    widths = np.maximum(np.diff(edges), (edges[-1] - edges[0]) / 400)
    highest = 0.0
    for counts, colour, name in ((some.n_negative, SECOND, "negative"), (some.n_positive, FIRST, "positive")):
        density = np.array(counts) / sum(counts) / widths
        axes.stairs(density, edges, color=colour, linewidth=1.6, fill=False)
        axes.stairs(density, edges, color=colour, alpha=0.18, fill=True)
        peak = int(np.argmax(density))
        at, align = (edges[peak] + edges[peak + 1]) / 2, "right" if name == "negative" else "left"
        name_point(axes, at, density[peak], name, (0, 3), color=colour, ha=align)
        highest = max(highest, float(density[peak]))
    axes.set_ylim(0, highest * 1.12)
    axes.margins(x=0.08)
    means = [float(np.average(groups.mean_score, weights=each)) for each in (groups.n_negative, groups.n_positive)]
    return (
        f"Distribution of the score by label. The mean is about {means[0]:.2f} for negative and {means[1]:.2f} for"
        " positive rows."
    )


# --- the terms and columns of a model


def terms_of(model: PartyModel) -> list[Term]:
    """Return the terms of a model, with their weights per standard deviation, and intervals if the job has them.

    A term of 0 and 1 has its weight per unit.
    """
    accuracy = {} if model.inference is None else model.inference.terms
    terms = []
    for each in weights_of(model):
        found, scale = accuracy.get(each.term), each.standardised / each.weight if each.weight else 0.0
        ends = (found.lower * scale, found.upper * scale) if found is not None and scale else (None, None)
        terms.append(Term(each.term, each.standardised, *ends))
    return terms


def draw_coefficients(axes: Axes, terms: Sequence[Term], *, unit: str = "standard deviation") -> str:
    """Draw the weights of the terms, the largest first, with their confidence intervals.

    Args:
        axes: where to draw.
        terms: the terms in any order. Those whose weight is not finite are left out.
        unit: what the weights are per.
    """
    finite = [term for term in terms if math.isfinite(term.weight)]
    if not finite:
        return nothing(axes, "There are no weights to show.")
    ranked = sorted(finite, key=lambda term: -abs(term.weight))
    shown = ranked[:MAX_ROWS]
    prepare_rows(axes, [term.name for term in ranked], f"weight (log-odds per {unit})")
    largest = abs(shown[0].weight) or 1.0
    ends = [abs(end) for term in shown for end in term.interval or () if math.isfinite(end)]
    reach = min(max([largest, *ends]), _MAX_INTERVAL * largest) * 1.08
    axes.axvline(0, color=ink(), alpha=0.55, linewidth=1)
    for place, term in enumerate(shown):
        interval = term.interval
        low, high = (max(-reach, min(reach, end)) for end in interval or (0.0, term.weight))
        axes.hlines(place, low, high, color=FIRST, linewidth=2 if interval else 5, alpha=0.9 if interval else 0.35)
        for end, marker in ((low, "<"), (high, ">")):
            if interval and abs(end) >= reach:
                axes.plot(end * 0.985, place, marker, color=FIRST, markersize=5)
        axes.plot(term.weight, place, "o", color=FIRST, markersize=5)
        say(axes, 1.01, place, f"{term.weight:+.3g}", transform=axes.get_yaxis_transform(), va="center")
    axes.set_xlim(-reach * 1.02, reach * 1.02)
    intervals = " with 95% intervals" if any(term.interval for term in shown) else ""
    return (
        f"Weights of {len(shown)} of {len(ranked)} terms{intervals}. The largest is"
        f" {shown[0].weight:+.3g} for {name_of(shown[0].name)}."
    )


def draw_bins(axes: Axes, bins: Sequence[BinFigures]) -> str:
    """Draw the bins of one column in their order: the rate of positives, or the share of rows if that is not known."""
    if not bins:
        return nothing(axes, "The column has no bins.")
    shown = bins[:MAX_BINS]
    has_rates = all(each.event_rate is not None for each in bins)
    values = [(each.event_rate if has_rates else each.share) or 0.0 for each in bins]
    of_what = "share of positive rows in the bin" if has_rates else "share of the training rows"
    prepare_rows(axes, [each.bin for each in bins], of_what, MAX_BINS)
    axes.barh(range(len(shown)), values[: len(shown)], height=0.68, color=FIRST)
    for place, each in enumerate(shown):
        woe = "" if each.woe is None else f", WOE {each.woe:+.2f}"
        say(axes, 1.01, place, f"{each.n_rows:,} rows{woe}", transform=axes.get_yaxis_transform(), va="center")
    reach = max(values) or 1.0
    axes.set_xlim(0, min(reach * 1.08, 1.0) if reach < 1 else 1.0)
    percent(axes.xaxis)
    if not has_rates:
        return f"Share of the training rows in each of {len(bins)} bins of {name_of(bins[0].column)}."
    overall = sum(each.share * value for each, value in zip(bins, values, strict=True))
    axes.axvline(overall, **REFERENCE | {"color": ink()})
    say(axes, overall, 1.0, f"all: {overall:.1%}", transform=axes.get_xaxis_transform(), ha="center", va="bottom")
    return (
        f"Rate of positives in each of {len(bins)} bins of {name_of(bins[0].column)}: from {min(values):.1%} to"
        f" {max(values):.1%}, and {overall:.1%} over all."
    )


def draw_stability(axes: Axes, shifts: Mapping[str, float]) -> str:
    """Draw how far columns, or the score, have shifted since the training, the largest shift first.

    Args:
        axes: where to draw.
        shifts: the CSI by column, or the PSI by what it measures.
    """
    ranked = _ranked(shifts)
    if not ranked:
        return nothing(axes, "There is no shift to show.")
    shown = ranked[:MAX_ROWS]
    prepare_rows(axes, [name for _, name in ranked], "stability index (PSI, CSI)")
    axes.barh(range(len(shown)), [value for value, _ in shown], height=0.68, color=FIRST)
    for place, (value, _) in enumerate(shown):
        say(axes, 1.01, place, f"{value:.3f}", transform=axes.get_yaxis_transform(), va="center")
    axes.set_xlim(0, max(shown[0][0] * 1.08, LARGE * 1.2))
    has_room = shown[0][0] < 8 * LARGE
    for bound, name in ((NOTEWORTHY, "some" if has_room else ""), (LARGE, "large")):
        axes.axvline(bound, **REFERENCE | {"color": SECOND})
        say(axes, bound, 1.0, name, transform=axes.get_xaxis_transform(), ha="center", va="bottom", color=SECOND)
    n_noteworthy = sum(value >= NOTEWORTHY for value, _ in ranked)
    return f"Shift since the training: {n_noteworthy} of {len(ranked)} figures are {NOTEWORTHY} or more."


# --- the training


def draw_loss(axes: Axes, rounds: Sequence[int], losses: Sequence[float | None]) -> str:
    """Draw the loss of each round.

    Args:
        axes: where to draw.
        rounds: numbers of the rounds, in ascending order.
        losses: loss of each; None or NaN if it is not known.
    """
    x = np.asarray(rounds, np.float64)
    y = np.array([math.nan if each is None else each for each in losses], np.float64)
    known = np.isfinite(y)
    if not known.any():
        return nothing(
            axes, "There are no rounds yet." if not len(x) else "This process does not have the losses of the rounds."
        )
    prepare(axes, "round", "loss (nats per row)")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
    n_unknown = int(np.count_nonzero(~known))
    x, y = x[known], y[known]
    low, high, first, last = (float(each) for each in (y.min(), y.max(), y[0], y[-1]))
    if low > 0 and high > _MAX_SPREAD * low:
        logarithmic(axes.yaxis, axes.set_yscale)
    drawn_x, drawn_y = _thinned(x, np.minimum(y, _MAX_LOSS))
    axes.plot(drawn_x, drawn_y, color=FIRST, linewidth=1.8, marker="o" if len(x) <= 40 else "", markersize=3.5)
    axes.plot(x[-1], drawn_y[-1], "o", color=FIRST, markersize=5)
    if x[-1] - x[0] < 4:
        axes.set_xlim(x[0] - 1, x[-1] + 1)
    align, place = ("left", 0.02) if last >= first else ("right", 0.98)
    say(axes, place, 0.97, f"round {x[-1]:,.0f}: {last:.5g}", transform=axes.transAxes, ha=align, va="top")
    unknown = f" {n_unknown:,} rounds have no loss." if n_unknown else ""
    return (
        f"Loss by round: {first:.5g} in round {x[0]:,.0f} and {last:.5g} in round {x[-1]:,.0f}; the least is"
        f" {low:.5g}.{unknown}"
    )


def draw_seconds(axes: Axes, seconds: Mapping[str, float]) -> str:
    """Draw the seconds of each kind of work, the longest first.

    Args:
        axes: where to draw.
        seconds: by kind of work, without the total.
    """
    ranked = _ranked(seconds)
    total = sum(value for value, _ in ranked)
    if total <= 0:
        return nothing(axes, "No time was measured.")
    prepare_rows(axes, [name for _, name in ranked], "seconds")
    axes.barh(range(len(ranked)), [value for value, _ in ranked], height=0.68, color=FIRST)
    for place, (value, _) in enumerate(ranked):
        text = f"{_seconds(value)}, {value / total:.0%}"
        say(axes, 1.01, place, text, transform=axes.get_yaxis_transform(), va="center")
    axes.set_xlim(0, ranked[0][0] * 1.05)
    return f"Seconds by kind of work. {ranked[0][1]} took the longest, {_seconds(ranked[0][0])} of {_seconds(total)}."


def draw_path(axes: Axes, search: Sequence[ComparedPenaltyRow]) -> str:
    """Draw what a cross-validation chose the penalty by, with standard errors, the strongest penalty first.

    That is the AUC of each penalty if the job has `choose: auc`, and else the log loss.
    """
    if is_by_auc(search):
        name, what, best = "AUC", "highest", max
        measured = [(each, each.auc, each.auc_error) for each in search]
    else:
        name, what, best = "log loss", "lowest", min
        measured = [(each, each.loss, each.standard_error) for each in search]
    known = [(each, mean, error or 0.0) for each, mean, error in measured if mean is not None]
    if not known:
        return nothing(axes, "The job compared no penalties.")
    means = [mean for _, mean, _ in known]
    strengths = [each.l1 + each.l2 for each, _, _ in known]
    is_scale = min(strengths) > 0 and len(set(strengths)) == len(strengths) > 1
    places = strengths if is_scale else list(range(len(known)))
    prepare(axes, "penalty, l1 + l2" if is_scale else "penalty: l1 above, l2 below", f"mean {name} on the folds")
    if is_scale:
        logarithmic(axes.xaxis, axes.set_xscale)
        axes.invert_xaxis()
    else:
        step = math.ceil(len(known) / 8)
        labels = [f"{each.l1:.3g}\n{each.l2:.3g}" for each, _, _ in known[::step]]
        axes.set_xticks(places[::step], labels)
    for place, (_, mean, error) in zip(places, known, strict=True):
        axes.vlines(place, mean - error, mean + error, color=FIRST, alpha=0.45, linewidth=3)
    axes.plot(places, means, color=FIRST, linewidth=1.2, marker="o", markersize=4)
    which = ""
    for place, (each, mean, _) in zip(places, known, strict=True):
        if not each.chosen:
            continue
        axes.axvline(place, **REFERENCE | {"color": SECOND})
        axes.plot(place, mean, "o", color=SECOND, markersize=7)
        text = f"chosen: {each.n_terms:.4g} columns"
        say(axes, place, 1.0, text, transform=axes.get_xaxis_transform(), ha="center", va="bottom", color=SECOND)
        which = f" The chosen one has l1 {each.l1:.3g} and l2 {each.l2:.3g}."
    title = f"{name[0].upper()}{name[1:]} of {len(known)} penalties on the folds"
    return f"{title}. The {what} is {best(means):.5g}.{which}"


# --- what charts share


def _prepare_shares(axes: Axes, x: str, y: str) -> None:
    prepare(axes, x, y)
    unit_square(axes)


def _next_colour(axes: Axes) -> str:
    """Return the colour of the next curve of a chart."""
    used = {line.get_color() for line in axes.lines}
    return next((colour for colour in PALETTE if colour not in used), PALETTE[0])


def _add_curve(axes: Axes, curve: Curve, label: str, figure: str, place: _Corner) -> None:
    (line,) = axes.plot(curve.x, curve.y, color=_next_colour(axes), linewidth=2)
    _name_curve(axes, line, label, figure, place)


def _name_curve(axes: Axes, line: Line2D, label: str, figure: str, place: _Corner) -> None:
    """Give a curve its name in a legend, if it has one."""
    text = ": ".join(filter(None, (name_of(label), figure)))
    if not text:
        return
    legend = axes.get_legend()
    handles = [] if legend is None else [each for each in legend.legend_handles if each is not None]
    texts = [] if legend is None else [each.get_text() for each in legend.get_texts()]
    legend = axes.legend([*handles, line], [*texts, text], loc=place, frameon=False, fontsize=SMALL)
    for each in legend.get_texts():
        each.set_parse_math(False)
        each.set_usetex(False)


def _of(figure: str) -> str:
    return f", {figure}" if figure else ""


def _thinned(x: FloatVector, y: FloatVector) -> tuple[FloatVector, FloatVector]:
    """Return at most `_MAX_POINTS` points of a curve with its extremes, so that a long training draws fast."""
    if len(x) <= _MAX_POINTS:
        return x, y
    borders = np.linspace(0, len(x), _MAX_POINTS // 2 + 1).astype(int)
    kept = {0, len(x) - 1}
    for start, end in pairwise(borders):
        kept |= {int(start + np.argmin(y[start:end])), int(start + np.argmax(y[start:end]))}
    places = sorted(kept)
    return x[places], y[places]


def _ranked(values: Mapping[str, float]) -> list[tuple[float, str]]:
    """Return values that are numbers with their names, the largest first."""
    return sorted(((value, name) for name, value in values.items() if math.isfinite(value)), key=lambda each: -each[0])


def _seconds(value: float) -> str:
    return f"{value:.3g} s" if value < 100 else duration(value)
