"""The catalogue of the paper's two data sets: their sources, their columns, and which party gets which column.

Each is one table that is divided between two parties as in the paper. The guest is a bank with its own data of a client
and the label. The host is another organisation that knows the same people. docs/data-sets.md describes them for users.
"""

from dataclasses import dataclass
from enum import StrEnum


class PublishedName(StrEnum):
    """The names of the data sets in commands."""

    CREDIT1 = "credit1"
    CREDIT2 = "credit2"


@dataclass(frozen=True)
class PublishedDataSet:
    """One published data set."""

    title: str
    """The publisher's title, and the publisher."""
    url: str | None
    """The URL of the file; None if the publisher requires an account."""
    by_hand: str
    """How a person gets the file, as an instruction."""
    file_name: str
    """The publisher's name of the file, also within an archive."""
    headers: tuple[tuple[str, ...], ...]
    """The known variants of the header: the ID, the features in the order of `features`, the label."""
    features: tuple[str, ...]
    """The names of the features, in published order."""
    guest_features: tuple[str, ...]
    """The guest's features: a bank's own data of a client. A payment processor or a credit bureau has the others."""
    n_rows: int
    """The published number of rows."""
    sha256: str
    """SHA-256 of the content, as from `trilateral.common.trial.published.content_sha256`."""

    @property
    def host_features(self) -> tuple[str, ...]:
        """The features of the host: all others."""
        return tuple(name for name in self.features if name not in self.guest_features)


_CREDIT1_GUEST = (
    "LIMIT_BAL",
    "SEX",
    "EDUCATION",
    "MARRIAGE",
    "AGE",
    "PAY_0",
    "PAY_2",
    "PAY_3",
    "PAY_4",
    "PAY_5",
    "PAY_6",
)
_CREDIT1_FEATURES = (
    *_CREDIT1_GUEST,
    *(f"BILL_AMT{month}" for month in range(1, 7)),
    *(f"PAY_AMT{month}" for month in range(1, 7)),
)
_CREDIT2_FEATURES = (
    "RevolvingUtilizationOfUnsecuredLines",
    "age",
    "NumberOfTime30-59DaysPastDueNotWorse",
    "DebtRatio",
    "MonthlyIncome",
    "NumberOfOpenCreditLinesAndLoans",
    "NumberOfTimes90DaysLate",
    "NumberRealEstateLoansOrLines",
    "NumberOfTime60-89DaysPastDueNotWorse",
    "NumberOfDependents",
)
_CREDIT1_URL = "https://archive.ics.uci.edu/static/public/350/data.csv"

PUBLISHED = {
    PublishedName.CREDIT1: PublishedDataSet(
        title="default of credit card clients (UCI Machine Learning Repository, data set 350)",
        url=_CREDIT1_URL,
        by_hand=f"download {_CREDIT1_URL} with a browser",
        file_name="data.csv",
        headers=(
            ("ID", *(f"X{number}" for number in range(1, 24)), "Y"),
            ("ID", *_CREDIT1_FEATURES, "default payment next month"),
        ),
        features=_CREDIT1_FEATURES,
        guest_features=_CREDIT1_GUEST,
        n_rows=30_000,
        sha256="b996d6b55fda64d52117f491adeae5e5b608328486b73b5e39af705a0dbfa7ea",
    ),
    PublishedName.CREDIT2: PublishedDataSet(
        title="Give Me Some Credit (Kaggle competition GiveMeSomeCredit)",
        url=None,
        by_hand=(
            "log in at https://www.kaggle.com/c/GiveMeSomeCredit/data, accept the rules of the competition, and "
            "download cs-training.csv"
        ),
        file_name="cs-training.csv",
        headers=(("", *_CREDIT2_FEATURES, "SeriousDlqin2yrs"),),
        features=_CREDIT2_FEATURES,
        guest_features=("age", "DebtRatio", "MonthlyIncome", "NumberOfDependents", "NumberRealEstateLoansOrLines"),
        n_rows=150_000,
        sha256="09bc8fcfcafdc454b50966a4bbba83867f46aa69b29d987a1af4a5a5ca9503e8",
    ),
}
