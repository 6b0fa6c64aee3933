"""From the information to what the parties are told: the inverse, and what is wrong with it."""

import numpy as np
import pytest

from trilateral.common.base.arrays import FloatMatrix, FloatVector
from trilateral.common.base.roles import PARTIES, Role
from trilateral.common.protocol.messages import OwnCovariance
from trilateral.common.shares.information import pack, unpack
from trilateral.coordinator.inference import NOT_CONVERGED, NOT_MEASURED, newton_step, own_covariances

COLUMNS = {Role.HOST: 2, Role.GUEST: 2}
N_ROWS = 1000


def information(X: FloatMatrix, slopes: FloatVector) -> FloatVector:
    return pack(X.T @ (X * slopes[:, np.newaxis]))


def columns(seed: int = 0) -> FloatMatrix:
    X = np.random.default_rng(seed).normal(size=(N_ROWS, 4))
    X[:, 3] = 1
    return X


def told(X: FloatMatrix, slopes: FloatVector, *, noise: float = 1e-4, converged: bool = True) -> list[OwnCovariance]:
    found = own_covariances(information(X, slopes), COLUMNS, noise=noise, converged=converged)
    return [found[party] for party in PARTIES]


def test_each_party_is_told_its_block_of_the_inverse_with_six_digits() -> None:
    X, slopes = columns(), np.random.default_rng(1).uniform(0.05, 0.25, N_ROWS)
    exact = np.linalg.inv(X.T @ (X * slopes[:, np.newaxis]))
    host, guest = told(X, slopes)
    assert unpack(host.covariance, 2) == pytest.approx(exact[:2, :2], rel=1e-5, abs=1e-9)
    assert unpack(guest.covariance, 2) == pytest.approx(exact[2:, 2:], rel=1e-5, abs=1e-9)
    assert all(float(f"{each:.5e}") == each for each in [*host.covariance, *guest.covariance])
    assert host.warnings == guest.warnings == ()


def test_what_was_not_measured_or_has_not_converged_is_said() -> None:
    found = own_covariances(None, COLUMNS, noise=1.0, converged=False)
    for each in found.values():
        assert len(each.covariance) == 0
        assert each.warnings == (NOT_CONVERGED, NOT_MEASURED)


def test_columns_of_both_parties_that_depend_on_each_other_are_named() -> None:
    X = columns()
    X[:, 2] = X[:, 0] + 1e-2 * X[:, 2]
    for each in told(X, np.full(N_ROWS, 0.2)):
        assert len(each.covariance) == 3
        assert each.warnings[0].startswith("columns of the host and of the guest almost depend on each other")


def test_equal_columns_have_no_standard_errors() -> None:
    X = columns()
    X[:, 2] = X[:, 0]
    for each in told(X, np.full(N_ROWS, 0.2)):
        assert len(each.covariance) == 0
        assert each.warnings[-1] == "the information cannot be inverted, so there are no standard errors"


@pytest.mark.parametrize("party", PARTIES)
def test_rows_that_are_separated_are_named_by_their_party(party: Role) -> None:
    """Two columns of a party that differ only in rows whose scores are extreme."""
    X = columns()
    first = 0 if party is Role.HOST else 2
    X[:, first + 1] = X[:, first]
    slopes = np.full(N_ROWS, 0.2)
    X[:20, first + 1] += 3
    slopes[:20] = 1e-4
    for each in told(X, slopes):
        assert f"(features of the {party})" in each.warnings[0]
        assert "quasi-complete separation" in each.warnings[0]


def test_rounding_errors_that_matter_are_said() -> None:
    X, slopes = columns(), np.full(N_ROWS, 0.2)
    host, _ = told(X, slopes, noise=0.2)
    assert host.warnings[0].startswith("the standard errors have a rounding error of up to 0.05")


def test_the_last_step_leads_to_the_minimum_of_a_quadratic_and_no_step_leads_far_away() -> None:
    X, slopes = columns(), np.full(N_ROWS, 0.2)
    F = X.T @ (X * slopes[:, np.newaxis])
    away = np.array([0.01, -0.02, 0.005, 0.01])
    newton = newton_step(pack(F), F @ away)
    assert newton is not None
    assert newton.step == pytest.approx(away, rel=1e-9)
    assert newton.shift == pytest.approx(np.std(X @ away), rel=0.1)
    assert not newton.is_exact
    assert newton_step(pack(F), F @ (10 * away)) is None


def test_a_singular_information_gives_no_last_step() -> None:
    X = columns()
    X[:, 2] = X[:, 0]
    assert newton_step(information(X, np.full(N_ROWS, 0.2)), np.full(4, 1e-6)) is None
