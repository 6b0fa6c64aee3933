"""From a party's features to its training columns, and from training weights back to weights of the features."""

from trilateral.common.data.preprocessing.steps import Preprocessing

__all__ = ["Preprocessing"]
