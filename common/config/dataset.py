"""One table of a party: where it lies, what its columns mean, how they are prepared."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import ConfigDict, Field, FiniteFloat, field_validator, model_validator

from trilateral.common.config.settings import Settings


class LabelConfig(Settings):
    """The column the guest predicts, and its two values.

    A value is compared as text, without regard to case, to blanks around it or to how a number is
    written: `1`, `1.0` and `"1"` are the same. Booleans in Parquet read as `true` and `false`.
    """

    # In YAML, `positive: 1` is a number, and that is what most people will write.
    model_config = ConfigDict(coerce_numbers_to_str=True)

    column: str = "label"
    """Name of the column. It is never a feature."""
    positive: str = "1"
    """The value that becomes y = +1: the event whose probability the model gives."""
    negative: str = "0"
    """The value that becomes y = -1."""
    calibration: Literal["platt", "isotonic", "none"] = "platt"
    """How scores become probabilities, fitted on the hold-out rows. It is here and not in the job since it is of the
    guest's labels alone: no one else has to agree to it or to know it."""
    threshold: Annotated[float, Field(gt=0, lt=1)] = 0.5
    """A row counts as positive in the accuracy if its calibrated probability is above this."""

    @model_validator(mode="after")
    def _check(self) -> "LabelConfig":
        if label_key(self.positive) == label_key(self.negative):
            raise ValueError("`positive` and `negative` are the same value: a label needs two")
        return self


class ColumnPreprocessing(Settings):
    """How a column of numbers is prepared."""

    fill: Literal["median", "mean"] | FiniteFloat = "median"
    """What a missing value becomes: the median or mean of the others, or a number."""
    missing_indicator: bool = False
    """Also have a column that is 1 where a value is missing, and else 0."""
    clip: tuple[float, float] | None = (0.01, 0.99)
    """Quantiles that values are clipped at, or null. Heavy tails make training diverge without it."""
    standardise: bool = True
    """Bring the column to mean 0 and standard deviation 1, or leave it as it is."""

    @field_validator("clip")
    @classmethod
    def _check_clip(cls, clip: tuple[float, float] | None) -> tuple[float, float] | None:
        if clip is not None and not 0 <= clip[0] < clip[1] <= 1:
            raise ValueError("`clip` needs two quantiles, 0 <= lower < upper <= 1, such as [0.01, 0.99]; or null")
        return clip


class PreprocessingConfig(ColumnPreprocessing):
    """How a party turns its features into training columns, with numbers fitted on its training rows."""

    rare: Annotated[float, Field(ge=0, lt=1)] = 0.01
    """Categories of a smaller share of the training rows count as one, together with those never seen."""
    whiten: bool = True
    """Make the training columns orthogonal: far fewer rounds for the same model. Off to reproduce the paper."""
    columns: dict[str, ColumnPreprocessing] = Field(default_factory=dict)
    """What differs for single columns of numbers."""

    def of_column(self, name: str) -> ColumnPreprocessing:
        """The settings of a column of numbers: its own where it has any, else those of all."""
        own = self.columns.get(name)
        return self if own is None else self.model_copy(update={key: getattr(own, key) for key in own.model_fields_set})


class IdForm(Settings):
    """The normal form that IDs are brought to before they are compared. Both parties need the same.

    Each rule may make two IDs of one party the same, which is then refused. The rules apply in the order of
    `trilateral.common.data.tables.id_form`.
    """

    spaces: bool = True
    """White space around an ID does not count."""
    unicode: bool = True
    """Letters that can be written in two ways, such as é, are the same (Unicode form NFC)."""
    decimals: bool = True
    """`17.0` is `17`: programs that take numbers for IDs write them so where another ID is missing."""
    case: bool = False
    """Letter case does not count."""
    zeros: bool = False
    """Leading zeros of an ID that has digits alone do not count."""


class DatasetConfig(Settings):
    """A party's table: one row a person, one column an attribute."""

    path: Path
    """A `.csv`, `.csv.gz` or `.parquet` file."""
    id: str = "id"
    """Column of the IDs that both parties know their rows by, read as text."""
    id_form: IdForm = IdForm()
    """What does not count when IDs are compared; leading zeros and letter case do by default."""
    label: LabelConfig | None = None
    """The guest's label; a host leaves it out."""
    features: Annotated[list[str], Field(min_length=1)] | None = None
    """Only these columns are features. By default all but the ID and the label are."""
    exclude: list[str] = Field(default_factory=list)
    """All columns but these are features. Not together with `features`."""
    categorical: list[str] = Field(default_factory=list)
    """Which of the features are categories, read as text. The others must be numbers."""
    preprocessing: PreprocessingConfig = PreprocessingConfig()
    """From features to training columns."""
    jobs: list[str] = Field(default=["*"])
    """Names of the jobs that may use this table: patterns with `*`, `?` and `[...]`. By default all may."""

    @model_validator(mode="after")
    def _check(self) -> "DatasetConfig":
        features = self.features or []
        if features and self.exclude:
            raise ValueError("`features` and `exclude` are two ways to say the same: give one of them")
        if len(set(features)) < len(features):
            raise ValueError("`features` names a column twice")
        if self.label is not None and self.label.column == self.id:
            raise ValueError("the label and the ID are the same column")
        if self.id in features:
            raise ValueError("`features` names the ID column: an ID is not a feature")
        if self.label is not None and self.label.column in features:
            raise ValueError("`features` names the label column: a label is not a feature")
        special = {self.id, *self.exclude} | ({self.label.column} if self.label is not None else set())
        for name in self.categorical:
            if name in special or (features and name not in features):
                raise ValueError(f"`categorical` names {name!r}, which is no feature by the other settings")
            if name in self.preprocessing.columns:
                raise ValueError(f"`preprocessing.columns` names {name!r}, which is categorical: it is for numbers")
        return self


def label_key(value: str) -> str:
    """What two ways of writing one label value have in common."""
    value = value.strip()
    try:
        return repr(float(value))
    except ValueError:
        return value.casefold()
