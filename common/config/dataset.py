"""The settings of one table of a party: where it is, what its columns mean and how they are prepared."""

from datetime import date, datetime
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    FiniteFloat,
    field_validator,
    model_validator,
)

from trilateral.common.config.settings import JobName, Settings

MAX_BINS = 20
"""The most bins of a column."""
MAX_REASON_LABELS = 200
"""The most labels of reasons in a dataset. On the wire, a reason is one byte."""
MAX_LABEL_CHARACTERS = 100
"""The longest label of a reason."""
_FORMULA = ("=", "+", "-", "@")
"""A text that begins so is a formula for spreadsheet programs. The host's labels stand in files of the guest."""


def check_reason_label(label: str) -> str:
    """Return a label of reasons.

    Raises:
        ValueError: it is empty or too long, begins like a formula, or has characters that cannot be printed.
    """
    if not 0 < len(label) <= MAX_LABEL_CHARACTERS or not label.isprintable() or label.startswith(_FORMULA):
        raise ValueError(
            f"expected a label of 1 to {MAX_LABEL_CHARACTERS} characters that can be printed, and not = + - or @ first"
        )
    return label


ReasonLabel = Annotated[str, AfterValidator(check_reason_label)]


class ClassWeight(Settings):
    """How much a row counts in training, by its label. Only the ratio of the two numbers matters."""

    positive: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    """The weight of the rows with the positive value."""
    negative: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    """The weight of the rows with the negative value."""


class LabelConfig(Settings):
    """The column that the guest predicts, and its two values.

    Values are compared as text. Letter case, surrounding blanks and the notation of a number do not matter: `1`,
    `1.0` and `"1"` are the same value. Booleans in Parquet files read as `true` and `false`.
    """

    # YAML reads `positive: 1` as a number, and most users will write just that.
    model_config = ConfigDict(coerce_numbers_to_str=True)

    column: str = "label"
    """Name of the label column. This column is never a feature."""
    positive: str = "1"
    """The value that means y = +1: the event whose probability the model predicts."""
    negative: str = "0"
    """The value that means y = -1."""
    classes: Annotated[list[str], Field(min_length=3, max_length=20)] | None = None
    """The values of the label if there are more than two, such as `[own, rent, free]`, in place of `positive` and
    `negative`. Jobs need the same number in `classes`, and `protocol: shares`. `calibration` is then `platt`, a softmax
    of the scores of all classes with a fitted slope and offset for each, or `none`. Cannot be combined with `weight`
    and `class_weight`."""
    calibration: Literal["platt", "isotonic", "none"] = "platt"
    """How scores become probabilities: by a sigmoid with a fitted slope and offset (`platt`), by a fitted rising curve
    (`isotonic`) or by the plain sigmoid (`none`). The fit uses the hold-out rows. The option belongs to the table and
    not to the job because it concerns the guest alone."""
    threshold: Annotated[float, Field(gt=0, lt=1)] = 0.5
    """The calibrated probability above which the accuracy counts a row as predicted positive."""
    weight: str | None = None
    """Name of a column with the weights of the rows: a row of weight 2 counts in training as two rows, a row of weight
    0 not at all. The column is never a feature, and only the guest knows its values. Hold-out figures and calibration
    count all rows alike. Requires jobs with `protocol: shares`. By default all rows have the same weight."""
    class_weight: Literal["balanced"] | ClassWeight | None = None
    """Weights by label: `{positive: 5, negative: 1}`, or `balanced`, which gives the training rows of both labels the
    same total. Together with `weight`, the two are multiplied. Requires jobs with `protocol: shares`. By default both
    labels have the same weight."""

    @model_validator(mode="after")
    def _check(self) -> "LabelConfig":
        if label_key(self.positive) == label_key(self.negative):
            raise ValueError("`positive` and `negative` are the same value: a label needs two different values")
        if self.classes is not None:
            self._check_classes(self.classes)
        if self.weight == self.column:
            raise ValueError("the label and the weight are the same column")
        return self

    def _check_classes(self, classes: list[str]) -> None:
        if len({label_key(value) for value in classes}) < len(classes):
            raise ValueError("`classes` names a value twice")
        if {"positive", "negative", "threshold"} & self.model_fields_set:
            raise ValueError("`classes` takes the place of `positive`, `negative` and `threshold`: remove these")
        if self.weighting:
            raise ValueError("`classes` cannot be combined with `weight` and `class_weight`: remove these")
        if self.calibration == "isotonic":
            raise ValueError("`classes` needs `calibration: platt` or `none`")

    @property
    def columns(self) -> list[str]:
        """Names of the columns that describe the label, and so are never features."""
        return [self.column] if self.weight is None else [self.column, self.weight]

    @property
    def weighting(self) -> list[str]:
        """Names of the settings that weight the rows; empty if all rows have the same weight."""
        return [f"label.{name}" for name in ("weight", "class_weight") if getattr(self, name) is not None]


def _as_date(value: object) -> object:
    # YAML reads 2023-12-31 as a date. A number would be taken for seconds since 1970.
    if isinstance(value, str):
        try:
            return date.fromisoformat(value)
        except ValueError:
            pass
    if not isinstance(value, date) or isinstance(value, datetime):
        raise ValueError("expected a date such as 2023-12-31")
    return value


IsoDate = Annotated[date, BeforeValidator(_as_date)]
SplitValues = list[Annotated[str, Field(coerce_numbers_to_str=True)]]


class SplitConfig(Settings):
    """The column that says which rows train and which evaluate the model, in jobs with `holdout: column`.

    Either lists of values name the rows of each set, or dates divide the rows. Values are compared as those of the
    label. A row with another value, or without one, takes no part in such a job.
    """

    column: str
    """Name of the column. It is never a feature."""
    train: SplitValues = Field(default=[])
    """The values of the training rows."""
    valid: SplitValues = Field(default=[])
    """The values of the rows on which the model is measured during and after the training, and calibrated."""
    test: SplitValues = Field(default=[])
    """The values of further rows on which the model is measured at the end. Without `valid`, they also serve for the
    calibration."""
    out_of_time: SplitValues = Field(default=[])
    """The values of later rows, on which the model is measured at the end, too."""
    train_until: IsoDate | None = None
    """The column has dates, such as 2023-12-31, or times that begin with one. Rows train up to this date, which is
    included."""
    valid_until: IsoDate | None = None
    """Later rows up to this date, which is included, are `valid`, and those after it `out_of_time`. By default all rows
    after `train_until` are `out_of_time`."""

    @model_validator(mode="after")
    def _check(self) -> "SplitConfig":
        lists = {name: getattr(self, name) for name in ("train", "valid", "test", "out_of_time")}
        named = [name for name, values in lists.items() if values]
        if self.train_until is not None:
            if named:
                raise ValueError(f"a split is by values or by dates: remove `{named[0]}` or `train_until`")
            if self.valid_until is not None and self.valid_until <= self.train_until:
                raise ValueError("`valid_until` must be later than `train_until`")
            return self
        if self.valid_until is not None:
            raise ValueError("`valid_until` needs `train_until`")
        if "train" not in named or len(named) == 1:
            raise ValueError(
                "a split needs the values of `train` and of at least one of `valid`, `test` and `out_of_time`; or a"
                " date in `train_until`"
            )
        keys = [label_key(value) for values in lists.values() for value in values]
        if len(set(keys)) < len(keys):
            raise ValueError("a value stands twice in the lists of a split: a row has one role")
        return self


class FoldConfig(Settings):
    """The column that decides the folds of a cross-validation, in jobs with `fold_by: group` or `time`. Set one."""

    group: str | None = None
    """Name of a column whose equal values mark rows of one group, such as a household. A group is in one fold."""
    time: str | None = None
    """Name of a column with dates such as 2023-12-31, with times, or with numbers. Each fold is one period. Rows of
    equal time are in one fold."""

    @model_validator(mode="after")
    def _check(self) -> "FoldConfig":
        if (self.group is None) is (self.time is None):
            raise ValueError("set the name of one column, as `group` or as `time`")
        return self

    @property
    def by(self) -> Literal["group", "time"]:
        """The `fold_by` of the jobs that the column is for."""
        return "time" if self.group is None else "group"

    @property
    def column(self) -> str:
        """Name of the column. It is never a feature."""
        return self.group or self.time or ""


Limits = tuple[FiniteFloat | None, FiniteFloat | None]


Transform = Literal["log", "log1p", "sqrt", "yeo_johnson"]


SplineKind = Literal["natural", "bspline"]
Knots = Annotated[list[FiniteFloat], Field(min_length=1, max_length=20)]


class SplineConfig(Settings):
    """Several terms in place of one, whose weighted sum is a smooth curve."""

    kind: SplineKind = "natural"
    """`natural`: a cubic curve that is straight beyond its ends. `bspline`: cubic B-splines."""
    knots: Annotated[int, Field(ge=1, le=20)] | Knots = 3
    """Where one piece of the curve passes into the next: how many such points there are, at quantiles that have the
    same share of the training rows between them; or the points themselves, in units of the table. The ends of the curve
    are the smallest and the largest clipped value."""

    @field_validator("knots")
    @classmethod
    def _check_knots(cls, knots: int | list[float]) -> int | list[float]:
        if isinstance(knots, list) and any(low >= high for low, high in pairwise(knots)):
            raise ValueError("`knots` must be in ascending order, such as [1000, 5000, 20000]")
        return knots


FOR_CATEGORIES = "give it `encoding`, and of the other options no more than `standardise`"
Order = Annotated[list[Annotated[str, Field(coerce_numbers_to_str=True)]], Field(min_length=2)]


class ColumnPreprocessing(Settings):
    """How a numeric column is prepared, or how a categorical one is encoded."""

    fill: Literal["median", "mean"] | FiniteFloat = "median"
    """The replacement for missing values: the `median` or `mean` of the column's training rows, or a fixed number."""
    missing_indicator: bool = False
    """Whether to add a second column that is 1 where the value is missing and 0 elsewhere."""
    clip: tuple[float, float] | None = (0.01, 0.99)
    """Two quantiles, [lower, upper], at which values are clipped, or null for no clipping. The default guards against
    heavy tails, which can make training diverge."""
    limits: Limits | None = None
    """Two values, [lower, upper], at which values are clipped before anything is fitted, such as `[0, 120]`, or
    `[0, null]` for a lower limit alone. `clip` applies as well unless it is null."""
    transform: Transform | None = None
    """A transform of the clipped values: `log`, `log1p` (the logarithm of 1 + x), `sqrt`, or `yeo_johnson`, a power
    that is fitted so that the values are close to a normal distribution. By default there is none."""
    spline: SplineConfig | None = None
    """A smooth curve of the transformed values in place of a straight line, such as `{kind: natural, knots: 3}`. By
    default there is none."""
    encoding: Literal["one_hot", "frequency"] | Order = "one_hot"
    """What categories become: a term of 0 and 1 for each (`one_hot`); or one number, the share of the training rows
    that have the category (`frequency`), or its place in a list such as `[low, medium, high]`, which only the settings
    of a single column can have. Of the other options, only `standardise` applies to categories."""
    standardise: bool = True
    """Whether to scale the column to mean 0 and standard deviation 1. If false, values keep their scale."""

    @property
    def suits_categories(self) -> bool:
        """Whether the options that are given can be those of a categorical column."""
        return "encoding" in self.model_fields_set and self.model_fields_set <= {"encoding", "standardise"}

    @field_validator("encoding")
    @classmethod
    def _check_encoding(cls, encoding: str | list[str]) -> str | list[str]:
        if isinstance(encoding, list) and len(set(encoding)) < len(encoding):
            raise ValueError("`encoding` lists a category twice")
        return encoding

    @field_validator("clip")
    @classmethod
    def _check_clip(cls, clip: tuple[float, float] | None) -> tuple[float, float] | None:
        if clip is not None and not 0 <= clip[0] < clip[1] <= 1:
            raise ValueError("`clip` needs two quantiles, 0 <= lower < upper <= 1, such as [0.01, 0.99]; or null")
        return clip

    @field_validator("limits")
    @classmethod
    def _check_limits(cls, limits: Limits | None) -> Limits | None:
        if limits is None:
            return None
        lower, upper = limits
        if lower is None and upper is None:
            raise ValueError("`limits` needs a lower or an upper value, such as [0, null]; or null for no limits")
        if lower is not None and upper is not None and lower >= upper:
            raise ValueError("`limits` needs two values, lower < upper, such as [0, 120]; or null")
        return limits


Bounds = Annotated[list[FiniteFloat], Field(min_length=1, max_length=MAX_BINS - 1)]
Group = Annotated[list[Annotated[str, Field(coerce_numbers_to_str=True)]], Field(min_length=1)]
Groups = Annotated[list[Group], Field(min_length=1, max_length=MAX_BINS - 1)]


class ColumnBinning(Settings):
    """How a column is divided into bins."""

    method: Literal["supervised", "quantile", "width", "none"] | Bounds | Groups = "supervised"
    """How numbers are divided: into bins whose share of positive rows rises or falls from bin to bin, with the largest
    information value (`supervised`); with equally many rows (`quantile`); or of equal width (`width`). `supervised`
    merges categories as well. `none` leaves the column as it is. In the settings of a single column, a list such as
    `[25, 40, 60]` has the bounds between the bins, and one such as `[[north, east], [south]]` the categories of each
    bin; all other categories are one bin."""
    max_bins: Annotated[int, Field(ge=2, le=MAX_BINS)] = 8
    """The most bins of a column. Missing values have a further one. It has no effect on a column with a list."""
    min_share: Annotated[float, Field(ge=0, lt=0.5)] = 0.05
    """The smallest share of the training rows in a bin. A smaller bin is merged with a neighbour. It has no effect on a
    column with a list."""
    woe: bool = True
    """Whether the column becomes one number, the weight of evidence of its bin. Otherwise each bin but the largest has
    a term that is 1 in its rows."""

    @model_validator(mode="after")
    def _check_lists(self) -> "ColumnBinning":
        if self.bounds is not None and any(low >= high for low, high in pairwise(self.bounds)):
            raise ValueError("the bounds in `method` must be in ascending order, such as [25, 40, 60]")
        named = [category for group in self.groups or [] for category in group]
        if len(set(named)) < len(named):
            raise ValueError("`method` names a category twice")
        return self

    @property
    def bounds(self) -> list[float] | None:
        """The bounds in `method`, if it has any."""
        listed = self.method if isinstance(self.method, list) else []
        return [each for each in listed if not isinstance(each, list)] or None

    @property
    def groups(self) -> list[list[str]] | None:
        """The groups of categories in `method`, if it has any."""
        listed = self.method if isinstance(self.method, list) else []
        return [each for each in listed if isinstance(each, list)] or None

    @property
    def needs_labels(self) -> bool:
        """Whether the bins depend on the labels."""
        return self.method == "supervised" or (self.woe and self.method != "none")


class BinningConfig(ColumnBinning):
    """How the columns are divided into bins, which are fitted on the training rows."""

    job: JobName | None = None
    """Host only: the name of the bins job that has counted the labels in this party's bins. The guest has labels of its
    own."""
    columns: dict[str, ColumnBinning] = Field(default_factory=dict)
    """Different settings for single columns, by name of the column. Options that are not given here keep the values set
    for all columns."""

    @model_validator(mode="after")
    def _check_method(self) -> "BinningConfig":
        if isinstance(self.method, list):
            raise ValueError("bounds and groups belong to one column: set `method` under `columns`")
        return self

    def of_column(self, name: str) -> ColumnBinning:
        """Return the settings of a column: its own where given, those of all columns otherwise."""
        own = self.columns.get(name)
        return self if own is None else self.model_copy(update={key: getattr(own, key) for key in own.model_fields_set})

    @property
    def some_need_labels(self) -> bool:
        """Whether the bins of some columns depend on the labels."""
        return self.needs_labels or any(self.of_column(name).needs_labels for name in self.columns)


class PreprocessingConfig(ColumnPreprocessing):
    """How a party turns its features into training columns. All parameters are fitted on its training rows."""

    rare: Annotated[float, Field(ge=0, lt=1)] = 0.01
    """The share of the training rows below which a category counts as rare. All rare categories of a column are
    treated as one, together with categories that first appear after training."""
    constant: Literal["exclude", "refuse"] = "exclude"
    """What happens to a column without a value, with one value only, or with so few other values that training would
    reveal their rows: it is left out with a note (`exclude`), or the job is refused (`refuse`). Only training rows
    count."""
    whiten: bool = True
    """Whether to make the party's training columns orthogonal. The model stays the same, but training needs far fewer
    rounds. Set it to false to reproduce the paper."""
    binning: BinningConfig | None = None
    """Whether and how the columns are divided into bins. `fill`, `limits`, `clip` and `missing_indicator` have no
    effect on a column with bins. By default no column has bins."""
    interactions: Annotated[list[tuple[str, str]], Field(max_length=100)] = Field(default=[])
    """Pairs of columns whose products are terms as well, such as `[[age, income], [age, branch]]`: two columns of
    numbers, or one of numbers and one of categories."""
    columns: dict[str, ColumnPreprocessing] = Field(default_factory=dict)
    """Different settings for single columns, by name of the column. Options that are not given here keep the
    values set for all columns."""

    @model_validator(mode="after")
    def _check_order(self) -> "PreprocessingConfig":
        if isinstance(self.encoding, list):
            raise ValueError("a list of categories belongs to one column: set `encoding` under `columns`")
        return self

    @field_validator("interactions")
    @classmethod
    def _check_interactions(cls, pairs: list[tuple[str, str]]) -> list[tuple[str, str]]:
        different = {frozenset(pair) for pair in pairs}
        if any(len(pair) == 1 for pair in different):
            raise ValueError("an interaction needs two different columns")
        if len(different) < len(pairs):
            raise ValueError("`interactions` names a pair twice")
        return pairs

    def of_column(self, name: str) -> ColumnPreprocessing:
        """Return the settings of a column: its own where given, those of all columns otherwise."""
        own = self.columns.get(name)
        return self if own is None else self.model_copy(update={key: getattr(own, key) for key in own.model_fields_set})


class IdForm(Settings):
    """Rules that bring IDs to a normal form before they are compared. Both parties must use the same rules.

    A rule may make two IDs of one party equal; `repeated_ids` says what happens then. Rules apply in the order
    `spaces`, `unicode`, `case`, `decimals`, `zeros`. If the ID has several columns, they apply to each.
    """

    spaces: bool = True
    """Remove white space around an ID."""
    unicode: bool = True
    """Treat the two Unicode spellings of a letter such as é as the same (normal form NFC)."""
    decimals: bool = True
    """Treat `17.0` as `17`. Programs that read IDs as numbers write them that way when another ID is missing."""
    case: bool = False
    """Ignore letter case."""
    zeros: bool = False
    """Remove leading zeros from IDs that consist of digits only. Zeros after another digit stay."""


IdColumns = Annotated[list[str], Field(min_length=1, max_length=8)]
MissingText = Annotated[str, Field(coerce_numbers_to_str=True), AfterValidator(str.strip)]


class DatasetConfig(Settings):
    """A party's table: one row for each person, one column for each attribute."""

    path: Path
    """A `.csv`, `.csv.gz` or `.parquet` file, or a folder of Parquet parts as Spark and Dask write it. A relative path
    starts at the folder of the configuration file."""
    id: str | IdColumns = "id"
    """Name of the column with the IDs by which both parties know their rows. IDs are read as text. If only several
    columns together identify a row, list them: `[country, number]`. Both parties then need the same number of columns
    in the same order; their names may differ."""
    id_form: IdForm = IdForm()
    """Rules for comparing IDs. By default leading zeros and letter case matter; surrounding white space, Unicode
    spelling and a trailing `.0` do not."""
    repeated_ids: Literal["refuse", "first", "aggregate"] = "refuse"
    """What happens if several rows have the same ID: the table is refused (`refuse`), the first row is kept (`first`),
    or the rows become one (`aggregate`) with the mean of each column of numbers and the most frequent value of each
    column of categories. Missing values do not count, and rows of one ID must then have the same label."""
    missing: list[MissingText] | None = None
    """The texts that mean a missing value, such as `[NA, "?", -999]`, instead of the usual ones; empty fields are
    always missing. By default they are `NA`, `N/A`, `NaN`, `NULL`, `None` and the like, except in categories of a
    Parquet file, which marks missing values itself. When a table is scored, the default is the list of the model's
    training."""
    label: LabelConfig | None = None
    """The label. Required at the guest; not allowed at the host."""
    split: SplitConfig | None = None
    """The column that says which rows train and which evaluate the model, in jobs with `holdout: column`. One party has
    it, and tells the other what each common row is for, if `policy.share_split` permits that."""
    folds: FoldConfig | None = None
    """The column by which rows get into folds, in jobs with `fold_by: group` or `time`. One party has it, and tells the
    other the fold of each training row, if `policy.share_folds` permits that."""
    features: Annotated[list[str], Field(min_length=1)] | None = None
    """Names of the feature columns. By default every column is a feature except the ID, the label, the weight, the
    columns of `split` and `folds`, and row numbers or row names that a program has added. To use such a column, name it
    here or in `categorical`."""
    exclude: list[str] = Field(default_factory=list)
    """Names of columns that are not features; all others are. Cannot be combined with `features`."""
    categorical: list[str] = Field(default_factory=list)
    """Names of the features that are categories and read as text. All other features must be numeric."""
    preprocessing: PreprocessingConfig = PreprocessingConfig()
    """How the features become training columns."""
    reason_labels: Annotated[dict[str, ReasonLabel], Field(max_length=MAX_REASON_LABELS)] = Field(default={})
    """Host only: what the guest reads where a column of the host is a reason of a score, by the name of the column, if
    `policy.max_reasons` permits reasons. Columns with the same label count as one. A column without a label is never
    a reason. An interaction has the name that `trilateral model show` prints."""
    jobs: list[str] = Field(default=["*"])
    """Names of the jobs that may use this table, as patterns with `*`, `?` and `[...]`. By default every job may use
    it."""

    @model_validator(mode="after")
    def _check(self) -> "DatasetConfig":
        features = self.features or []
        if features and self.exclude:
            raise ValueError("`features` and `exclude` cannot be combined: remove one of them")
        if len(set(features)) < len(features):
            raise ValueError("`features` names a column twice")
        if len(set(self.id_columns)) < len(self.id_columns):
            raise ValueError("`id` names a column twice")
        if self.label is not None and self.reason_labels:
            raise ValueError("`reason_labels` is a setting of the host alone: remove it")
        if self.label is not None and self.label.column in self.id_columns:
            raise ValueError("the label and the ID are the same column")
        if self.label is not None and self.label.weight in self.id_columns:
            raise ValueError("the weight and the ID are the same column")
        if not set(self.id_columns).isdisjoint(features):
            raise ValueError("`features` names the ID column: an ID is not a feature")
        if self.label is not None and self.label.column in features:
            raise ValueError("`features` names the label column: a label is not a feature")
        if self.label is not None and self.label.weight in features:
            raise ValueError("`features` names the weight column: the weight of a row is not a feature")
        if self.split is not None:
            self._check_column("split", self.split.column, features)
        if self.folds is not None:
            self._check_column("folds", self.folds.column, features)
        special = {*self.id_columns, *self.exclude, *(self.label.columns if self.label is not None else [])}
        special |= {each.column for each in (self.split, self.folds) if each is not None}
        for name in self.categorical:
            if name in special or (features and name not in features):
                raise ValueError(f"`categorical` names {name!r}, which the other settings exclude from the features")
            own = self.preprocessing.columns.get(name)
            if own is not None and not own.suits_categories:
                raise ValueError(f"`preprocessing.columns` names {name!r}, which is categorical: {FOR_CATEGORIES}")
        if self.preprocessing.binning is not None:
            self._check_binning(self.preprocessing.binning)
        for one, other in self.preprocessing.interactions:
            if one in self.categorical and other in self.categorical:
                raise ValueError(
                    f"`preprocessing.interactions` names {one!r} and {other!r}, which are both categorical: one of them"
                    " must be a column of numbers"
                )
        return self

    def _check_binning(self, binning: BinningConfig) -> None:
        if self.label is not None and binning.job is not None:
            raise ValueError(
                "`preprocessing.binning.job` is a setting of the host alone, because the guest has labels of its own:"
                " remove it"
            )
        if self.label is not None and self.label.classes is not None and binning.some_need_labels:
            raise ValueError(
                "`preprocessing.binning` takes a label of two values, and `label.classes` names more: set `woe: false`,"
                " and a `method` other than `supervised`"
            )
        for name, own in binning.columns.items():
            if own.bounds is not None and name in self.categorical:
                raise ValueError(
                    f"`preprocessing.binning.columns` gives bounds to {name!r}, which is categorical: give it groups"
                    " such as [[a, b], [c]], or set another `method`"
                )
            if own.groups is not None and name not in self.categorical:
                raise ValueError(
                    f"`preprocessing.binning.columns` gives groups to {name!r}, which is not in `categorical`: add it"
                    " there, or give it bounds such as [25, 40, 60]"
                )

    def _check_column(self, setting: str, column: str, features: list[str]) -> None:
        if column in self.id_columns:
            raise ValueError(f"`{setting}` and `id` name the same column")
        if self.label is not None and column in self.label.columns:
            raise ValueError(f"`{setting}` names the column of the label or of its weight")
        if column in features:
            raise ValueError(f"`features` names the {setting} column: it says what a row is for, and is not a feature")

    @property
    def id_columns(self) -> list[str]:
        """Names of the columns that together are the ID."""
        return [self.id] if isinstance(self.id, str) else self.id


def label_key(value: str) -> str:
    """Return a key that is equal for equal label values: case-folded text, or a number in one notation."""
    value = value.strip()
    try:
        return repr(float(value))
    except ValueError:
        return value.casefold()
