"""The paper's two data sets: where they are published, what their columns are, and who gets which.

Both are one table each, from which two parties are made as in the paper: the guest is a bank with its own view of a
client and the label, the host somebody else who knows the same people. docs/data-sets.md says the same to people.
"""

from dataclasses import dataclass
from enum import StrEnum


class PublishedName(StrEnum):
    """What the data sets are called here."""

    CREDIT1 = "credit1"
    CREDIT2 = "credit2"


@dataclass(frozen=True)
class PublishedDataSet:
    """One data set as its publisher has it, and as it is here."""

    title: str
    url: str | None
    """Of a file that anyone can download; None where the publisher asks for an account."""
    by_hand: str
    """How a person gets the file, as an instruction."""
    file_name: str
    """The file's name at the publisher, within an archive as well."""
    headers: tuple[tuple[str, ...], ...]
    """The ways to name the columns that are known from the publisher: the ID, the features as below, the label."""
    features: tuple[str, ...]
    """In the order in which they are published."""
    guest_features: tuple[str, ...]
    """A bank's own view of its client; the other features are a payment processor's or a bureau's."""
    n_rows: int
    sha256: str
    """Of the content, see `trilateral.common.trial.published_table.content_sha256`."""

    @property
    def host_features(self) -> tuple[str, ...]:
        """All that the guest does not get."""
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
