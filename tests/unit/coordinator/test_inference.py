"""From the information to what the parties are told: the inverse, and what is wrong with it."""

from collections.abc import Collection

import numpy as np
import pytest

from trilateral.common.base.arrays import FloatMatrix, FloatVector
from trilateral.common.base.roles import PARTIES, Role
from trilateral.common.protocol.messages import OwnCovariance
from trilateral.common.protocol.separation import OF_BOTH, of_party, separated_by
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


def told(
    X: FloatMatrix,
    slopes: FloatVector,
    *,
    noise: float = 1e-4,
    intercept: bool = True,
    whitened: Collection[Role] = PARTIES,
) -> list[OwnCovariance]:
    found = own_covariances(
        information(X, slopes), COLUMNS, noise=noise, converged=True, intercept=intercept, whitened=whitened
    )
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
    found = own_covariances(None, COLUMNS, noise=1.0, converged=False, intercept=True, whitened=PARTIES)
    for each in found.values():
        assert len(each.covariance) == 0
        assert each.warnings == (NOT_CONVERGED, NOT_MEASURED)


def test_columns_of_both_parties_that_depend_on_each_other_are_named() -> None:
    X = columns()
    X[:, 2] = X[:, 0] + 1e-2 * X[:, 2]
    for each in told(X, np.full(N_ROWS, 0.2)):
        assert len(each.covariance) == 3
        assert each.warnings[0] == OF_BOTH
        assert each.may_be_separated
        assert each.depends


@pytest.mark.parametrize(("noise", "depends"), [(0.1, True), (1.0, False)])
def test_columns_that_depend_on_each_other_less_are_no_warning_but_said(noise: float, depends: bool) -> None:
    """Standard errors of a party's part then are large without separation."""
    X = columns()
    X[:, 2] = X[:, 0] + noise * X[:, 2]
    for each in told(X, np.full(N_ROWS, 0.2)):
        assert not each.warnings
        assert not each.may_be_separated
        assert each.depends is depends


def test_equal_columns_have_no_standard_errors() -> None:
    X = columns()
    X[:, 2] = X[:, 0]
    for each in told(X, np.full(N_ROWS, 0.2)):
        assert len(each.covariance) == 0
        assert each.depends
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
    for each in told(X, slopes, intercept=party is Role.GUEST):
        assert each.warnings[0] == of_party(party)
        assert each.may_be_separated
        assert not each.depends


def level(rows: int) -> FloatVector:
    """A whitened column of the rows of a category."""
    x = np.zeros(N_ROWS)
    x[:rows] = 1
    return np.asarray((x - x.mean()) / x.std())


@pytest.mark.parametrize("party", PARTIES)
def test_a_separating_category_is_that_of_its_party_though_the_intercept_takes_part(party: Role) -> None:
    """On all rows whose labels are in doubt, the category is a constant."""
    X, slopes = columns(), np.full(N_ROWS, 0.2)
    X[:, 0 if party is Role.HOST else 2] = level(50)
    slopes[:50] = 1e-6
    for each in told(X, slopes):
        assert each.warnings[0] == of_party(party)
        assert not each.depends


def test_no_information_at_all_is_separation() -> None:
    for each in told(columns(), np.full(N_ROWS, 5e-4), noise=1e-9):
        assert each.warnings == (separated_by("features"),)
        assert each.may_be_separated
        assert len(each.covariance) == 3


@pytest.mark.parametrize("party", PARTIES)
def test_columns_that_are_not_whitened_may_depend_on_each_other(party: Role) -> None:
    X, first = columns(), 0 if party is Role.HOST else 2
    X[:, first + 1] = X[:, first] + 1e-2 * np.random.default_rng(1).normal(size=N_ROWS)
    (other,) = set(PARTIES) - {party}
    for each in told(X, np.full(N_ROWS, 0.2), intercept=False, whitened=[other]):
        assert each.warnings[0].startswith(f"columns of the {party} almost depend on each other, or separate")


def test_a_guest_without_features_has_no_warning() -> None:
    X = columns()[:, [0, 1, 3]]
    found = own_covariances(
        information(X, np.full(N_ROWS, 0.2)),
        {Role.HOST: 2, Role.GUEST: 1},
        noise=1e-4,
        converged=True,
        intercept=True,
        whitened=PARTIES,
    )
    assert not any(each.warnings or each.depends for each in found.values())


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
