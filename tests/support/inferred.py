"""A training on shares with inference, and what it has told both parties, side by side with the terms it is about."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from tests.support.frames import features_of
from tests.support.three_machines import Tables, make_machines, run_machines
from trilateral.common.base.arrays import FloatMatrix, FloatVector
from trilateral.common.base.roles import PARTIES, Role
from trilateral.common.config.dataset import PreprocessingConfig
from trilateral.common.config.job import JobConfig
from trilateral.common.data.model.inference import Inference, ModelFit, fit_of, infer
from trilateral.common.data.party_data import PreparedData, make_party_data
from trilateral.common.data.tables.id_list import Ids
from trilateral.common.data.tables.table import PartyTable
from trilateral.common.paillier.keys import PrivateKey
from trilateral.common.protocol.batches import holdout_split


@dataclass
class Case:
    """A table of both parties, and what a training on it has told them."""

    design: FloatMatrix
    """The terms of the host, centred, those of the guest, and ones; training rows only."""
    positive: FloatVector
    weights: FloatVector | None
    """Of mean 1."""
    inference: dict[Role, Inference]
    fit: ModelFit

    @property
    def errors(self) -> FloatVector:
        return np.array([each.std_error for each in self._terms])

    @property
    def coef(self) -> FloatVector:
        return np.array([each.weight for each in self._terms])

    @property
    def z(self) -> FloatVector:
        return np.array([each.z for each in self._terms])

    @property
    def p_values(self) -> FloatVector:
        return np.array([each.p_value for each in self._terms])

    @property
    def lower(self) -> FloatVector:
        return np.array([each.lower for each in self._terms])

    @property
    def upper(self) -> FloatVector:
        return np.array([each.upper for each in self._terms])

    @property
    def _terms(self) -> list[Any]:
        host, guest = (self.inference[party] for party in PARTIES)
        assert guest.intercept is not None
        return [*host.terms.values(), *guest.terms.values(), guest.intercept]


def train_with_inference(
    job: JobConfig,
    config: PreprocessingConfig,
    frames: tuple[pd.DataFrame, pd.DataFrame],
    labels: FloatVector,
    key: PrivateKey,
    weights: FloatVector | None = None,
) -> Case:
    """Train on the tables of the host and of the guest; labels are -1 and 1."""
    n_rows = len(labels)
    ids = Ids.of([f"{row:07d}" for row in range(n_rows)])
    features = dict(zip(PARTIES, map(features_of, frames), strict=True))
    data: dict[Role, PreparedData] = {
        Role.HOST: make_party_data(PartyTable(ids, features[Role.HOST], None), config, job),
        Role.GUEST: make_party_data(PartyTable(ids, features[Role.GUEST], labels, weights=weights), config, job),
    }
    outcome = run_machines(make_machines(job, Tables(data[Role.HOST], data[Role.GUEST]), key))
    inference = {}
    for party, result in outcome.results.items():
        assert result.inference is not None
        assert all("rounding error" in warning for warning in result.inference.warnings)
        inference[party] = infer(data[party].preprocessing, result.coef, result.inference.covariance, [])
        assert not inference[party].warnings
    block = data[Role.GUEST].block
    assert block.labels is not None
    n_parameters = len(outcome.coef)
    fit = fit_of(outcome.results[Role.GUEST].loss, block.labels, block.sample_weights, n_parameters, intercept=True)
    assert job.holdout != "column"
    train, _ = holdout_split(n_rows, job.holdout, job.seed)
    terms = {party: data[party].preprocessing.expand(features[party].take(train)) for party in PARTIES}
    centred = terms[Role.HOST] - terms[Role.HOST].mean(axis=0)
    design = np.column_stack([centred, terms[Role.GUEST], np.ones(len(train))])
    scaled = None if block.sample_weights is None else block.sample_weights / block.sample_weights.mean()
    return Case(design, (block.labels > 0).astype(np.float64), scaled, inference, fit)
