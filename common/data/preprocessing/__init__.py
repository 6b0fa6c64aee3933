"""From a party's features to its training columns, and from training weights back."""

from trilateral.common.data.preprocessing.steps import Preprocessing

__all__ = ["Preprocessing"]
