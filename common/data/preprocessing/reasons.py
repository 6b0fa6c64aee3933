"""Why a column is not used. Each text continues the words "column 'name' has"."""

from trilateral.common.data.preprocessing.few_rows import MIN_ROWS

NO_VALUE = "no value in any training row"
SAME_VALUE = "the same value in all training rows"
SAME_NUMBER = "categories of the same number in all training rows, by its `encoding`"
SHOWS_ROWS = "training rows so far from all others that training would reveal them"
TOO_RARE = f"the same value in all but fewer than {MIN_ROWS} training rows, so that training would reveal those rows"


class UnusableError(Exception):
    """A column cannot be used, and the user must decide."""


class ConstantError(Exception):
    """A column says too little, or too much about a few rows, and can be left out."""
