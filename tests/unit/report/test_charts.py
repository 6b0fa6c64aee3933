"""What charts show and say, with ordinary and with extreme figures."""

import io
import math
from collections.abc import Iterator

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from trilateral.common.data.model.bin_figures import BinFigures
from trilateral.common.data.model.model_file import ComparedPenaltyRow
from trilateral.common.data.model.score_groups import ScoreGroups
from trilateral.common.report import charts
from trilateral.common.report.charts import Term
from trilateral.common.report.drawing import names_of


@pytest.fixture
def axes() -> Iterator[Axes]:
    """Axes that are drawn at the end, where a warning would be an error."""
    figure = Figure(layout="constrained")
    yield figure.add_subplot()
    figure.savefig(io.BytesIO())


def two_groups() -> ScoreGroups:
    """20 of 30 rows above the bound are positive, and 10 of 40 below it."""
    return ScoreGroups(
        bounds=[0.5], n_positive=[10, 20], n_negative=[30, 10], mean_score=[-1.0, 2.0], mean_probability=[0.25, 0.8]
    )


def shown(axes: Axes) -> list[str]:
    return [each.get_text() for each in axes.texts]


def curve_names(axes: Axes) -> list[str]:
    legend = axes.get_legend()
    return [] if legend is None else [each.get_text() for each in legend.get_texts()]


def test_a_roc_curve_goes_through_the_borders_of_the_groups(axes: Axes) -> None:
    charts.draw_roc(axes, two_groups(), auc=0.7083)
    np.testing.assert_allclose(np.asarray(axes.lines[0].get_xydata()), np.array([[0, 0], [0.25, 2 / 3], [1, 1]]))
    assert curve_names(axes) == ["AUC 0.708"]


def test_further_curves_have_colours_of_their_own_and_one_reference(axes: Axes) -> None:
    for label in ("_one", "$two$", "three"):
        charts.draw_roc(axes, two_groups(), auc=0.7, label=label)
    assert len({line.get_color() for line in axes.lines}) == len(axes.lines) == 4
    assert curve_names(axes) == [
        "_one: AUC 0.700",
        "$two$: AUC 0.700",
        "three: AUC 0.700",
    ]


def test_each_chart_of_quality_says_its_main_figure(axes: Axes) -> None:
    groups = two_groups()
    others = [axes.figure.add_axes((0, 0, 1, 1)) for _ in range(5)]
    assert charts.draw_precision_recall(axes, groups).endswith("of all rows, 42.9% are positive.")
    assert "a gap of 0.417. Between all rows, KS is 0.500." in charts.draw_ks(others[0], groups, ks=0.5)
    assert charts.draw_gain(others[1], groups).startswith("Gain. The 20% of the rows with the highest scores have 31%")
    assert "positive rows are 1.6 times as frequent" in charts.draw_lift(others[2], groups)
    assert "In 2 of 2 groups" in charts.draw_calibration(others[3], groups)
    assert "about -0.25 for negative and 1.00 for positive" in charts.draw_distribution(others[4], groups)
    assert "KS 0.500\ngap 0.417\nat score 0.5" in shown(others[0])


def test_a_distribution_has_the_area_one(axes: Axes) -> None:
    charts.draw_distribution(axes, two_groups())
    for patch in axes.patches:
        data = patch.get_data()  # type: ignore[attr-defined]
        assert np.sum(data.values * np.diff(data.edges)) == pytest.approx(1)


def test_only_the_largest_terms_are_drawn(axes: Axes) -> None:
    terms = [Term(f"t{number}", number / 100) for number in range(200)]
    text = charts.draw_coefficients(axes, terms)
    assert text == "Weights of 20 of 200 terms. The largest is +1.99 for t199."
    labels = [each.get_text() for each in axes.get_yticklabels()]
    assert (labels[0], labels[-1], len(labels)) == ("t199", "and 180 more", 21)


def test_an_endless_interval_does_not_squeeze_the_others(axes: Axes) -> None:
    terms = [
        Term("separated", 8.0, -900.0, 916.0),
        Term("endless", 1.0, -math.inf, math.inf),
        Term("unknown", 0.5, math.nan, math.nan),
        Term("no weight", math.nan),
        Term("zero", 0.0),
    ]
    assert charts.draw_coefficients(axes, terms).startswith("Weights of 4 of 4 terms with 95% intervals.")
    assert axes.get_xlim()[1] < 40


@pytest.mark.parametrize("unit", ["standard deviation", "unit"])
def test_weights_say_what_they_are_per(axes: Axes, unit: str) -> None:
    charts.draw_coefficients(axes, [Term("age", 0.1, 0.0, 0.2)], unit=unit)
    assert axes.get_xlabel() == f"weight (log-odds per {unit})"


def test_nothing_to_draw_is_said_in_words(axes: Axes) -> None:
    others = [axes.figure.add_axes((0, 0, 1, 1)) for _ in range(6)]
    for other, text in zip(
        others,
        [
            charts.draw_coefficients(others[0], []),
            charts.draw_bins(others[1], []),
            charts.draw_stability(others[2], {"age": math.nan}),
            charts.draw_loss(others[3], [], []),
            charts.draw_loss(others[4], [1, 2], [None, math.nan]),
            charts.draw_seconds(others[5], {}),
        ],
        strict=True,
    ):
        assert shown(other) == [text]
    assert charts.draw_path(axes, []) == "The job compared no penalties."


@pytest.mark.parametrize(
    ("losses", "scale"),
    [
        ([0.69], "linear"),
        ([0.69, None, 0.5, math.nan, math.inf], "linear"),
        ([0.69 * 3**n for n in range(30)], "log"),
        ([0.7, 1e308], "log"),
        ([0.0, 100.0], "linear"),
        ([-1e-9, 0.5], "linear"),
        ([0.5, 0.5], "linear"),
    ],
)
def test_any_loss_can_be_drawn(axes: Axes, losses: list[float | None], scale: str) -> None:
    charts.draw_loss(axes, range(1, len(losses) + 1), losses)
    assert axes.get_yscale() == scale
    assert "mathdefault" not in "".join(each.get_text() for each in axes.get_yticklabels())


def test_a_long_training_is_drawn_with_its_extremes(axes: Axes) -> None:
    losses: list[float | None] = [0.5] * 10_000
    losses[1234], losses[5678] = 0.9, 0.1
    text = charts.draw_loss(axes, range(1, 10_001), losses)
    x, y = axes.lines[0].get_data()
    assert len(np.asarray(x)) <= 1002
    assert (max(np.asarray(y)), min(np.asarray(y))) == (0.9, 0.1)
    assert text == "Loss by round: 0.5 in round 1 and 0.5 in round 10,000; the least is 0.1."


def bins(n: int, rate: float | None) -> list[BinFigures]:
    return [BinFigures("age", f"bin {place}", 10, 1 / n, rate, None, None) for place in range(n)]


def test_bins_show_the_rate_of_positives_if_it_is_known(axes: Axes) -> None:
    text = charts.draw_bins(axes, bins(3, 0.2))
    assert text == "Rate of positives in each of 3 bins of age: from 20.0% to 20.0%, and 20.0% over all."
    assert "10 rows" in shown(axes)


def test_bins_without_labels_show_the_share_of_rows(axes: Axes) -> None:
    assert charts.draw_bins(axes, bins(60, None)) == "Share of the training rows in each of 60 bins of age."
    assert [each.get_text() for each in axes.get_yticklabels()][-1] == "and 20 more"


def test_a_shift_is_compared_with_the_usual_bounds(axes: Axes) -> None:
    text = charts.draw_stability(axes, {"age": 0.02, "income": 0.31, "$branch$": 0.1, "score": 9.0})
    assert text == "Shift since the training: 3 of 4 figures are 0.1 or more."
    assert "large" in shown(axes)


def test_seconds_have_their_shares(axes: Axes) -> None:
    assert charts.draw_seconds(axes, {"deal": 30.0, "setup": 10.0}).startswith("Seconds by kind of work. deal took")
    assert shown(axes) == ["30 s, 75%", "10 s, 25%"]


def penalty(l1: float, l2: float, loss: float | None, *, chosen: bool = False) -> ComparedPenaltyRow:
    error = None if loss is None else 0.01
    return ComparedPenaltyRow(l1=l1, l2=l2, loss=loss, standard_error=error, n_terms=4.2, chosen=chosen)


@pytest.mark.parametrize("l2", [(1.0, 0.1, 0.01), (0.1, 0.1, 0.0)])
def test_a_path_shows_the_chosen_penalty(axes: Axes, l2: tuple[float, ...]) -> None:
    search = [
        penalty(0, l2[0], None),
        penalty(0, l2[0], 0.6),
        penalty(0, l2[1], 0.5, chosen=True),
        penalty(0, l2[2], 0.55),
    ]
    text = charts.draw_path(axes, search)
    assert (
        text == f"Log loss of 3 penalties on the folds. The lowest is 0.5. The chosen one has l1 0 and l2 {l2[1]:.3g}."
    )
    assert shown(axes) == ["chosen: 4.2 columns"]
    assert axes.get_xscale() == ("log" if min(l2) > 0 else "linear")


def test_a_path_shows_the_auc_if_that_chose_the_penalty(axes: Axes) -> None:
    search = [
        penalty(0, 1.0, None),
        penalty(0, 0.1, 0.6).model_copy(update={"auc": 0.75, "auc_error": 0.02, "chosen": True}),
        penalty(0, 0.01, 0.5).model_copy(update={"auc": 0.7, "auc_error": 0.03}),
    ]
    text = charts.draw_path(axes, search)
    assert text == "AUC of 2 penalties on the folds. The highest is 0.75. The chosen one has l1 0 and l2 0.1."
    assert axes.get_ylabel() == "mean AUC on the folds"
    curve, *_, chosen = axes.lines
    np.testing.assert_array_equal(curve.get_ydata(), [0.75, 0.7])
    np.testing.assert_array_equal(chosen.get_ydata(), [0.75])


def test_long_names_that_would_look_alike_keep_what_differs() -> None:
    long = [f"a very long name of a column, with number {number} and more words at its end" for number in range(12)]
    found = names_of([*long, "short", "short"])
    assert len(set(found)) == 13
    assert max(map(len, found)) <= 33
    assert found[3].startswith("a very")
    assert "er 3 and more" in found[3]
