"""Settings of a label of several classes, and of the jobs that train them."""

from typing import Any

import pytest
from pydantic import ValidationError

from trilateral.common.base.errors import ConfigError
from trilateral.common.config.dataset import LabelConfig
from trilateral.common.config.job import JobConfig, Sgd

CLASSES = ["own", "rent", "free"]


def make_job(**settings: Any) -> JobConfig:
    return JobConfig(**{"name": "job", "dataset": "people", "protocol": "shares", "classes": 3} | settings)


def test_a_job_fits_one_model_or_one_for_each_class() -> None:
    assert make_job().n_models == 3
    assert make_job(classes=None).n_models == 1


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"protocol": "paillier"}, "`classes` belongs to `protocol: shares`"),
        ({"algorithm": Sgd()}, "`classes` needs the algorithm `lbfgs`"),
        ({"evaluate_every": 2}, "`classes` cannot be combined with `evaluate_every`"),
        ({"holdout": "column"}, "`classes` cannot be combined with `holdout: column`"),
        ({"inference": True}, "`classes` cannot be combined with `inference`"),
        ({"start_from": "earlier"}, "`classes` cannot be combined with `start_from`"),
        ({"folds": 5}, "`classes` cannot be combined with `folds`"),
        ({"l1": 0.1}, "`classes` cannot be combined with `l1`"),
        ({"task": "bins"}, "`classes` cannot be combined with `task: bins`"),
        ({"classes": 2}, "classes: expected"),
    ],
)
def test_a_job_that_cannot_train_classes_is_refused_with_a_way_out(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        make_job(**settings)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"classes": ["own", "rent", "Own "]}, "`classes` names a value twice"),
        ({"classes": ["1", "2", "1.0"]}, "`classes` names a value twice"),
        ({"classes": CLASSES, "positive": "own"}, "`classes` takes the place of"),
        ({"classes": CLASSES, "threshold": 0.4}, "`classes` takes the place of"),
        ({"classes": CLASSES, "weight": "exposure"}, "cannot be combined with `weight` and `class_weight`"),
        ({"classes": CLASSES, "class_weight": "balanced"}, "cannot be combined with `weight` and `class_weight`"),
        ({"classes": CLASSES, "calibration": "isotonic"}, "needs `calibration: platt` or `none`"),
    ],
)
def test_a_label_whose_settings_do_not_suit_classes_is_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError) as refused:
        LabelConfig.model_validate(settings)
    assert said in str(refused.value)
