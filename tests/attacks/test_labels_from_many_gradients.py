"""A party that knows its features collects gradients over many epochs and solves for the labels.

With a learning rate near 0 the scores stay near 0, so every gradient is X_S'y up to a factor: as many linear
equations as features, however large the batch S. New batches every epoch give new equations every epoch; after
n_train / (features x batches) epochs least squares finds every label. The same batches give the same equations.
"""

import numpy as np
import pytest

from trilateral.common.base.arrays import Rows
from trilateral.common.protocol.batches import Batch, Batches

N_TRAIN, N_FEATURES, BATCH, EPOCHS = 300, 3, 90, 60


def share_of_labels_found() -> float:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N_TRAIN, N_FEATURES))
    y = rng.permutation(np.repeat([-1.0, 1.0], N_TRAIN // 2))
    batches = Batches(N_TRAIN, BATCH, seed=1)
    equations, gradients = [], []
    for epoch in range(1, EPOCHS + 1):
        for index in range(batches.count):
            rows = batches.rows(Batch(epoch, index))
            equation = np.zeros((N_FEATURES, N_TRAIN))
            equation[:, rows] = X[rows].T
            equations.append(equation)
            gradients.append(X[rows].T @ y[rows])
    found = np.linalg.lstsq(np.vstack(equations), np.concatenate(gradients))[0]
    return float(np.mean(np.sign(found) == y))


@pytest.mark.parametrize("protected", [True, False])
def test_labels_cannot_be_solved_for_from_all_gradients_of_a_training(
    protected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not protected:

        def drawn_anew(self: Batches, batch: Batch) -> Rows:
            order = np.random.default_rng([self.seed, batch.epoch]).permutation(self.n_train)
            return np.sort(np.array_split(order, self.count)[batch.index])

        monkeypatch.setattr(Batches, "rows", drawn_anew)
    found = share_of_labels_found()
    assert (found < 0.65) if protected else (found > 0.99)
