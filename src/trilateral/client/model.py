"""A party's part of a model, for use in memory."""

import os
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import numpy as np
import pandas as pd

from trilateral.client.comparison import Stability, numbers_of, shift_frame
from trilateral.client.errors import wrong_type
from trilateral.common.base.errors import ConfigError, DataError
from trilateral.common.base.html import facts_html
from trilateral.common.base.roles import Role
from trilateral.common.config.job import JobConfig
from trilateral.common.data.model import bins_file, model_file
from trilateral.common.data.model.assessment import EvaluatedSet
from trilateral.common.data.model.bin_figures import BinFigures, bin_alone, bin_figures
from trilateral.common.data.model.calibration import calibrate
from trilateral.common.data.model.comparison import pair_terms
from trilateral.common.data.model.distributions import ShiftCounter, chance_psi, psi
from trilateral.common.data.model.elimination import Criterion, EliminatedColumn, elimination_of
from trilateral.common.data.model.export import weights_of
from trilateral.common.data.model.inference import Inference
from trilateral.common.data.model.model_file import ComparedPenaltyRow
from trilateral.common.data.model.scorecard import CSV_COLUMNS, Candidate, Scale, candidates, scorecard
from trilateral.common.data.model.scoring import score_features
from trilateral.common.data.tables.table import read_frame
from trilateral.common.protocol.evaluation import HoldoutMetrics

if TYPE_CHECKING:
    from trilateral.client.plots import Plots
    from trilateral.common.data.model.bins_file import BinsFile
    from trilateral.common.data.model.model_file import PartyModel


def load_model(path: str | os.PathLike[str], of_class: str | None = None) -> "Model":
    """Load a party's part of a model. The file is data: no code in it runs.

    Args:
        path: the file ``model.json``, or the folder of a job, which holds it.
        of_class: in a model of several classes, whose model against the rest to load: a value of the label or, at the
            host, the number of the class from 1 up.

    Returns:
        The party's part.

    Raises:
        DataError: there is no such file, or it is not a model of this format. The text has a line for each problem.
        ConfigError: there is no such class, or the model has several and none was named.

    Example:
        >>> model = trilateral.load_model("state/guest/jobs/churn/model.json")  # doctest: +SKIP
        >>> model.score(customers)  # doctest: +SKIP
    """
    if not isinstance(path, str | os.PathLike):
        raise wrong_type("path", "the path of a model file or of a job's folder", path)
    found = Path(path)
    path = found / "model.json" if found.is_dir() else found
    return Model(model_file.load_model(path).one(of_class), path)


def load_bins(path: Path) -> pd.DataFrame:
    """Load what a party got to know in a bins job; see `Session.bins`.

    Raises:
        DataError: there is no such file, or it is not that of a bins job.
    """
    return bins_frame(bins_file.load_bins(path))


def bins_frame(source: "BinsFile | PartyModel") -> pd.DataFrame:
    """Return the figures of bins as a table; see `Model.bins`."""
    rows = [asdict(each) for column in bin_figures(source) for each in column]
    frame = pd.DataFrame(rows, columns=[field.name for field in fields(BinFigures)])
    return frame.astype(dict.fromkeys(("event_rate", "woe", "iv"), np.float64))


_MAX_TERMS = 20
"""Terms that a notebook shows of a model."""


class Model:
    """One party's part of a model.

    The score u of a person is the sum of both parties' parts, u = u_host + u_guest. Each party can compute its own
    part alone. Only both together can compute the sum, with `Session.predict`.
    """

    def __init__(self, part: "PartyModel", path: Path | None = None) -> None:
        self._part = part
        self._path = path

    def __repr__(self) -> str:
        return f"<Model: the {self.role}'s part of job {self.job.name}, {len(self._part.weights)} terms>"

    def _repr_html_(self) -> str:
        """Describe the part in a notebook: its main figures and its largest weights."""
        part, found = self._part, self.metrics
        facts: dict[str, object] = {
            "training rows": f"{part.data.n_train:,}",
            "terms": f"{len(part.weights):,}",
            part.job.loss_name: f"{part.loss:.6g}",
            "rounds": f"{part.rounds:,}",
            "ended": part.reason,
        }
        if found is not None:
            rows = f"{found.n_rows:,} rows" if found.auc is None else f"AUC {found.auc:.4f}, KS {found.ks:.4f}"
            facts["on the hold-out rows"] = f"{rows}, log loss {found.log_loss:.4f}"
        facts["probabilities"] = self.calibration
        largest = self.coefficients().sort_values("standardised", key=abs, ascending=False)
        n_others = len(largest) - _MAX_TERMS
        below = f"<p>and {n_others:,} more: see <code>coefficients()</code></p>" if n_others > 0 else ""
        weights = largest.head(_MAX_TERMS).to_html(float_format="{:.4g}".format, na_rep="")
        return facts_html(f"the {self.role}'s part of model {part.job.name}", facts) + weights + below

    @property
    def role(self) -> Role:
        """The party whose part this is."""
        return self._part.role

    @property
    def job(self) -> JobConfig:
        """The job that trained the model."""
        return self._part.job

    @property
    def run_id(self) -> str:
        """Identifier of the run that trained the model, in hexadecimal. Both parts of one model have the same."""
        return self._part.run_id

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the columns that `score` needs."""
        return self._part.steps.features

    @property
    def coef(self) -> "pd.Series[float]":
        """The weights in units of the table, by term, shape (n_terms,).

        A column of numbers is a term, and so is each category of a column of categories (``branch=north``).
        """
        return pd.Series(self._part.weights, dtype=np.float64, name="coef")

    @property
    def intercept(self) -> float:
        """The constant of this part. The host has one too: it makes up for the means of its columns."""
        return self._part.intercept

    def coefficients(self) -> pd.DataFrame:
        """Return the weights and odds ratios as a table.

        Returns:
            A row for each term, with the columns `coef` (in units of the table), `standardised` (per standard
            deviation of the term), `odds_ratio` (factor of the odds per unit of the term) and `odds_ratio_per_sd` (per
            standard deviation; NaN for a term that is 0 or 1 or was not standardised).
        """
        weights = weights_of(self._part)
        return pd.DataFrame(
            {
                "coef": [each.weight for each in weights],
                "standardised": [each.standardised for each in weights],
                "odds_ratio": [each.odds_ratio for each in weights],
                "odds_ratio_per_sd": [
                    np.nan if each.odds_ratio_per_sd is None else each.odds_ratio_per_sd for each in weights
                ],
            },
            index=pd.Index([each.term for each in weights], name="term"),
        )

    @property
    def inference(self) -> Inference | None:
        """Standard errors, tests and intervals, and at the guest the fit; None unless the job has `inference`."""
        return self._part.inference

    @property
    def loss(self) -> float:
        """Loss that the job trains, on the training rows, penalty included: Taylor loss, or logistic loss on shares."""
        return self._part.loss

    @property
    def rounds(self) -> int:
        """Number of rounds of the training."""
        return self._part.rounds

    @property
    def epochs(self) -> int:
        """Number of epochs of the training."""
        return self._part.epochs

    @property
    def reason(self) -> str:
        """Why the training ended."""
        return self._part.reason

    @property
    def metrics(self) -> HoldoutMetrics | None:
        """AUC, KS and other figures on the hold-out rows; None at the host and without hold-out rows."""
        return self._part.metrics

    @property
    def evaluation_sets(self) -> list[EvaluatedSet]:
        """The figures on each evaluation set with confidence intervals, the hold-out first; empty at the host."""
        return list(self._part.evaluation_sets)

    @property
    def calibration(self) -> str | None:
        """How far the probabilities of `probabilities` can be trusted, in words; None at the host."""
        return self._part.calibration_summary

    @property
    def plot(self) -> "Plots":
        """Charts of this part, such as ``model.plot.roc()`` and ``model.plot.coefficients()``.

        Raises:
            ConfigError: matplotlib is not installed.
        """
        try:
            from trilateral.client.plots import Plots
        except ModuleNotFoundError:
            raise ConfigError(
                "charts need matplotlib, which is not installed: run `pip install 'trilateral[report]'`"
            ) from None
        return Plots(self._part, self._path)

    def bins(self) -> pd.DataFrame:
        """Return the bins of this party's columns.

        Returns:
            A row for each bin, with the columns `column`, `bin`, `n_rows` (training rows), `share` (of the training
            rows), `event_rate` (share of positive rows), `woe` (weight of evidence) and `iv` (part of the information
            value of the column). A figure is NaN if it needs labels that are not known. Columns without bins have no
            rows.
        """
        return bins_frame(self._part)

    def scorecard(self, *, base_score: float = 600.0, base_odds: float = 50.0, pdo: float = 20.0) -> pd.DataFrame:
        """Return the points of this party's bins. The points of both parties add up to a person's total.

        Args:
            base_score: the points at `base_odds`.
            base_odds: odds of the negative to the positive label, above 0.
            pdo: points that double the odds, above 0.

        Returns:
            A row for each bin, with the columns `column`, `bin`, `n_rows`, `woe`, `points` (exact) and `rounded`. The
            first row at the guest, `(base)`, has the points that everybody has.

        Raises:
            DataError: a column has no bins.
            ConfigError: `base_odds` or `pdo` is not above 0.
        """
        if not (base_odds > 0 and pdo > 0):
            raise ConfigError("`base_odds` and `pdo` must be above 0")
        rows = scorecard(self._part, Scale(base_score, base_odds, pdo))
        figures = [
            (row.column, bin_alone(row.column, row.bin), row.n_rows, row.woe, row.points, row.rounded) for row in rows
        ]
        frame = pd.DataFrame(figures, columns=list(CSV_COLUMNS))
        return frame.astype({"n_rows": "Int64", "woe": np.float64})

    def penalties(self) -> pd.DataFrame:
        """Return the penalties that the job has compared by cross-validation, the strongest first.

        Returns:
            A row for each penalty, with the columns `l1`, `l2`, `loss` (mean log loss on the folds), `standard_error`
            (of that mean), `auc` and `auc_error` (the same for the AUC; NaN unless the job has ``choose: auc``),
            `n_terms` (training columns with a weight, the mean over the folds) and `chosen`. No row at the host and
            without `folds`.
        """
        rows = [each.model_dump() for each in self._part.search]
        frame = pd.DataFrame(rows, columns=list(ComparedPenaltyRow.model_fields))
        kinds = dict.fromkeys(ComparedPenaltyRow.model_fields, np.float64) | {"chosen": np.bool_}
        return frame.astype(kinds)

    def candidates(self) -> pd.DataFrame:
        """Return figures by which to choose among this party's terms.

        Returns:
            A row for each term, with the columns `iv` (information value of its column; NaN without bins), `weight`
            (standardised), `vif` (variance inflation factor among the party's own terms), `correlation` (the largest
            by absolute value with another of them) and `partner` (that other term). The last three are NaN or None in
            a model without whitening.
        """
        rows = [asdict(each) for each in candidates(self._part)]
        frame = pd.DataFrame(rows, columns=[field.name for field in fields(Candidate)]).set_index("term")
        return frame.astype(dict.fromkeys(("iv", "weight", "vif", "correlation"), np.float64))

    def elimination(self, by: Criterion = "p_value", *, alpha: float = 0.05) -> pd.DataFrame:
        """Return which of this party's columns a backward elimination leaves out, without a further training.

        Args:
            by: with `p_value`, columns whose p-value is below `alpha` stay; with `aic`, those without which AIC rises.
            alpha: the level of significance.

        Returns:
            A row for each column in the order of the elimination, with the columns `statistic` (chi-square of the Wald
            test), `df` (degrees of freedom), `p_value`, `aic_change` and `stays`.

        Raises:
            ConfigError: the job has no `inference`, or `by` is another criterion.
        """
        if by not in get_args(Criterion):
            raise ConfigError(f"`by` must be one of {', '.join(get_args(Criterion))}, not {by!r}")
        steps = elimination_of(self._part, by, alpha)
        rows = [each.test.model_dump() | {"stays": each.stays} for each in steps]
        return pd.DataFrame(rows, columns=[*EliminatedColumn.model_fields, "stays"]).set_index("column")

    def score(self, frame: pd.DataFrame) -> "pd.Series[float]":
        """Compute this party's part of the score of some rows.

        Args:
            frame: the rows. Of its columns, only `features` are read. Missing values and categories are treated as in
                the training.

        Returns:
            The part of each row, u_host or u_guest, with the index of `frame`, shape (n_rows,).

        Raises:
            DataError: a column is missing or holds values of the wrong kind.
            TypeError: `frame` is not a DataFrame.
        """
        if not isinstance(frame, pd.DataFrame):
            raise wrong_type("frame", "a pandas DataFrame with the columns of `features`", frame)
        steps = self._part.steps
        categorical = steps.texts
        features = read_frame(frame, steps.features, categorical, self._part.missing)
        scores = score_features(steps, np.array(self._part.training_weights), features)
        return pd.Series(scores, index=frame.index, name="score")

    def shift(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Compare rows with those of the training, column by column.

        Args:
            frame: the rows. Of its columns, only `features` are read.

        Returns:
            A row for each column of the model, the largest shift first, with the columns `csi` (characteristic
            stability index) and `by_chance` (its mean for so many rows if nothing has shifted).

        Raises:
            DataError: a column is missing or holds values of the wrong kind, there are no rows, or an earlier release
                wrote the model file.
            TypeError: `frame` is not a DataFrame.
        """
        if not isinstance(frame, pd.DataFrame):
            raise wrong_type("frame", "a pandas DataFrame with the columns of `features`", frame)
        if frame.empty:
            raise DataError("there are no rows to compare with those of the training")
        distributions, steps = self._part.known_distributions, self._part.steps
        counter = ShiftCounter(distributions)
        counter.add(read_frame(frame, steps.features, steps.texts, self._part.missing))
        return shift_frame(distributions, counter.shift)

    def score_shift(self, scores: "pd.Series[float]") -> Stability:
        """Compare scores with those of the hold-out rows.

        Args:
            scores: joint scores u, such as the column `score` of a prediction, shape (n_rows,); in the model of a
                class, those of the class.

        Raises:
            DataError: this is the host's part, the job had too few hold-out rows, an earlier release wrote the model
                file, or a score is not finite.
            TypeError: `scores` is not a Series.
        """
        if not isinstance(scores, pd.Series):
            raise wrong_type("scores", "a pandas Series, such as the column `score` of a prediction", scores)
        distribution = self._part.known_distributions.score
        if distribution is None:
            raise DataError(
                "the model file has no distribution of the score: only the guest's part of a model with enough hold-out"
                " rows has one"
            )
        values = numbers_of(scores, "scores")
        if not len(values) or not np.isfinite(values).all():
            raise DataError("`scores` has no rows, or some that are not finite")
        expected = distribution.counts
        found = psi(expected, distribution.count(values))
        return Stability(found, chance_psi(expected, len(values)), len(values), sum(expected))

    def compare(self, other: "Model") -> pd.DataFrame:
        """Compare the weights of two models of the same party.

        Args:
            other: the second model.

        Returns:
            A row for each term of either model, by the larger of its weights, with the columns `first`, `second` and
            `difference` (second minus first): weights of standardised terms, NaN in a model that lacks the term.

        Raises:
            DataError: the models are parts of different parties.
            TypeError: `other` is not a Model.
        """
        if not isinstance(other, Model):
            raise wrong_type("other", "a Model", other)
        pairs = pair_terms(self._part, other._part)
        return pd.DataFrame(
            {name: [getattr(pair, name) for pair in pairs] for name in ("first", "second", "difference")},
            index=pd.Index([pair.term for pair in pairs], name="term"),
            dtype=np.float64,
        )

    def probabilities(self, scores: "pd.Series[float]") -> "pd.Series[float]":
        """Turn scores of both parties together into probabilities of the positive label.

        Only the guest's part has the calibration. The property `calibration` says how far to trust it.

        Args:
            scores: joint scores u, such as the column `score` of a prediction, shape (n_rows,).

        Returns:
            Probabilities with the same index, shape (n_rows,).

        Raises:
            DataError: this is the host's part, or a score is not a number.
            TypeError: `scores` is not a Series.
        """
        if not isinstance(scores, pd.Series):
            raise wrong_type("scores", "a pandas Series, such as the column `score` of a prediction", scores)
        calibration = self._part.calibration
        if calibration is None:
            raise DataError("the host's part of a model has no calibration: only the guest can compute probabilities")
        probabilities = calibrate(numbers_of(scores, "scores"), calibration)
        return pd.Series(probabilities, index=scores.index, name="probability")
