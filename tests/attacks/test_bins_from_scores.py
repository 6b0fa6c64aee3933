"""The guest reads the bins of single rows in the host's scores: sums of few values.

Without the count by bits, a host with 13 columns in bins would score its rows with 5 models.
"""

from pathlib import Path

import numpy as np
import pandas as pd

from tests.support.frames import features_of
from trilateral.common.base.roles import Role
from trilateral.common.config.dataset import PreprocessingConfig
from trilateral.common.config.process import Policy
from trilateral.common.data.preprocessing import Preprocessing
from trilateral.common.jobs.account import Account
from trilateral.common.jobs.ledger import Ledger
from trilateral.common.protocol.evaluation import round_scores

N_ROWS = 3_000


def host(n_columns: int, binned: bool) -> tuple[Preprocessing, pd.DataFrame]:
    rng = np.random.default_rng(n_columns)
    frame = pd.DataFrame(rng.normal(size=(N_ROWS, n_columns)), columns=[f"x{place}" for place in range(n_columns)])
    labels = np.where(rng.random(N_ROWS) < 1 / (1 + np.exp(-frame.sum(axis=1))), 1.0, -1.0)
    settings = {"binning": {"max_bins": 4}} if binned else {}
    config = PreprocessingConfig.model_validate(settings)
    return Preprocessing.fit(features_of(frame), config, False, labels=labels), frame


def test_scores_of_few_columns_in_bins_fall_into_the_cells_of_the_bins() -> None:
    steps, frame = host(3, binned=True)
    weights = np.random.default_rng(0).normal(size=steps.n_columns)
    scores = round_scores(steps.transform(features_of(frame)) @ weights)
    cells = {tuple(row): score for row, score in zip(steps.expand(features_of(frame)).tolist(), scores, strict=True)}
    # Every row of a cell has the same score, and nearly every cell has a score of its own: one model shows all bins.
    assert len(set(scores.tolist())) > 0.9 * len(cells)
    assert len(cells) <= 4**3


def test_the_host_scores_columns_in_bins_with_fewer_models(tmp_path: Path) -> None:
    account = Account(Ledger(tmp_path, Role.HOST), Policy(), "people", Role.HOST)
    points = {binned: account.max_points(host(13, binned)[0].n_row_values) for binned in (False, True)}
    # As many numbers as columns would permit 5 models, and 5 scores of 17 bits show more than the 26 bits of a row.
    assert points == {False: 5, True: 1}
