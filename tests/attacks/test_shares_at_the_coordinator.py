"""What a curious coordinator tries on the sums of a session on shares: it knows the masks U, r, and all that it dealt.

Each attack wins without the rule of the protocol that stands against it, and loses with it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from tests.attacks.test_shares_views import WHOLE, tables_of
from tests.support import share_roles
from tests.support.share_roles import ShareRoles
from tests.support.three_machines import make_machines, run_machines
from trilateral.common.base.arrays import ElementVector, FloatMatrix, FloatVector
from trilateral.common.base.roles import PARTIES, Role
from trilateral.common.paillier.keys import PrivateKey
from trilateral.common.protocol.messages import ElementPiece, Kind, RoundKey
from trilateral.common.shares import kernels, reference, ring
from trilateral.common.shares.format import OFFSET, Format
from trilateral.common.shares.information import (
    DealtSlopes,
    Information,
    Masks,
    SlopeFormat,
    deal_slopes,
    wide_shares,
)
from trilateral.common.shares.kernels import DealerKeys
from trilateral.common.shares.keys import Purpose
from trilateral.common.shares.layout import grouped, untile
from trilateral.coordinator.shares.points import Range


@dataclass
class Knowledge:
    """What the coordinator has of a round."""

    gradient: ElementVector
    """The sums that it opened."""
    residuals: ElementVector
    """sigma(u) - 1/2 of each row, with its rounding error, if all scores are 0: then z = r + OFFSET, so the coordinator
    computes what both parties compute."""


@contextmanager
def opened_by(roles: ShareRoles, *, fault: tuple[int, ElementVector] | None = None) -> Iterator[Knowledge]:
    """Run rounds and keep what the coordinator opens.

    Args:
        roles: the three roles.
        fault: a row, and what the host's share of its residual is wrong by.
    """
    known = Knowledge(np.zeros(0, np.uint64), np.zeros(roles.n_padded, np.uint64))
    join, compute = ring.join_shares, kernels.residual

    def join_shares(*parts: Any) -> ElementVector:
        opened = join(*parts)
        if len(opened) > 1:
            known.gradient = opened
        return opened

    def residual(fmt: Format, role: Role, *arguments: Any, **options: Any) -> kernels.Residual:
        if role is Role.HOST:
            known.residuals[:] = 0
        result = compute(fmt, role, *arguments, **options)
        known.residuals += result.d
        if fault is not None and role is Role.HOST:
            d = result.d.copy()
            d[fault[0] : fault[0] + 1] += fault[1]
            result = replace(result, d=d)
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(share_roles, "join_shares", join_shares)
        patch.setattr(kernels, "residual", residual)
        yield known


# --- rounding errors of single rows


def with_rare_category(n_rows: int, row: int, rng: np.random.Generator) -> tuple[FloatMatrix, FloatMatrix, FloatVector]:
    """Columns of which the host's first is a standardised category that one row has."""
    rare = np.zeros(n_rows)
    rare[row] = 1
    host = np.column_stack([(rare - rare.mean()) / rare.std(), rng.normal(size=(n_rows, 2))])
    guest = np.column_stack([rng.normal(size=n_rows), np.ones(n_rows)])
    return host, guest, (rng.random(n_rows) < 0.2).astype(float)


def distances(fmt: Format, known: Knowledge, n_rows: int, n_positive: int) -> FloatVector:
    """Return for each row how far the first sum is from what it would be if that row had the category.

    The column then has the value p in this row and q in all others, so the sum is (p - q) d_i + q sum d, where each d
    is the known residual plus or minus 1/2, by the label.
    """
    p, q = (int(np.rint(value * fmt.column_scale)) for value in (np.sqrt(n_rows - 1), -1 / np.sqrt(n_rows - 1)))
    half = 1 << (fmt.f_d - 1)
    residuals = known.residuals[:n_rows].view(np.int64).astype(object)
    total = int(residuals.sum()) + half * (n_rows - 2 * n_positive)
    observed = int(known.gradient[:1].view(np.int64)[0])
    best = np.full(n_rows, np.inf)
    for label in (half, -half):
        expected = (p - q) * (residuals + label) + q * total
        best = np.minimum(best, np.abs(observed - expected).astype(float))
    return best


def ranks_of_the_row(*, exact: bool, trials: int) -> FloatVector:
    """Return, for some tables, the share of all rows that look more likely to have the category than its own row."""
    n_rows, rng, ranks = 3000, np.random.default_rng(1), []
    fmt = Format.of(24_000, 12)
    for _ in range(trials):
        row = int(rng.integers(n_rows))
        host, guest, y = with_rare_category(n_rows, row, rng)
        roles = ShareRoles(fmt, host, guest, y, exact=exact)
        with opened_by(roles) as known:
            roles.round(np.zeros(5))
            far = distances(fmt, known, n_rows, int(y.sum()))
        ranks.append((far < far[row]).mean() + (far == far[row]).mean() / 2)
    return np.array(ranks)


def test_exact_sums_show_which_row_has_a_rare_category() -> None:
    assert (ranks_of_the_row(exact=True, trials=6) < 1 / 3000).all()


def test_rounded_sums_do_not() -> None:
    ranks = ranks_of_the_row(exact=False, trials=20)
    assert (ranks < 0.02).sum() <= 4  # 0.4 are expected.
    assert 0.2 < ranks.mean() < 0.8


@pytest.mark.parametrize(("n_train", "weight_bits"), [(1000, None), (24_000, None), (10**6, None), (24_000, 6)])
def test_eight_bits_more_than_the_noise_are_dropped(n_train: int, weight_bits: int | None) -> None:
    """The noise is measured at a score of 0, where d is known exactly: what is left is the rounding of one row."""
    fmt = Format.of(n_train, 12, weight_bits)
    rng = np.random.default_rng(2)
    n_rows = 2000
    weights = None if weight_bits is None else rng.integers(1, 5, n_rows).astype(float)
    roles = ShareRoles(fmt, rng.normal(size=(n_rows, 1)), np.ones((n_rows, 1)), np.zeros(n_rows), weights)
    with opened_by(roles) as known:
        roles.round(np.zeros(2))
    deviation = known.residuals.view(np.int64).astype(float).std()
    rms = 1.0 if weights is None else float(np.sqrt(np.mean(weights**2)))
    noise = deviation * np.sqrt(n_train) * fmt.column_scale * 2.0**fmt.f_c * rms
    assert 2.0 ** fmt.gradient_drop(n_train) >= 2**8 * noise * (0.95 if weights is None else 0.9)


@pytest.mark.parametrize("max_score", [12, 24])
@pytest.mark.parametrize(("n_train", "weight_bits"), [(1000, None), (24_000, None), (10**6, None), (24_000, 6)])
def test_eight_bits_more_than_the_noise_are_dropped_from_the_gradient_and_the_loss_of_inference(
    n_train: int, weight_bits: int | None, max_score: int
) -> None:
    """Its residual has more bits than those of the rounds. The noise is measured at a score of 0, too."""
    slopes, n_rows = SlopeFormat.of(Format.of(n_train, max_score, weight_bits), n_train, 0), 4096
    keys = {Role.HOST: bytes(16), Role.GUEST: bytes([1] * 16)}
    dealer = DealerKeys(bytes([2] * 16), bytes([3] * 16), *keys.values())
    one_each = np.zeros(1, np.uint64), np.zeros(1, np.uint64)
    corrections = deal_slopes(slopes, dealer, one_each, 0, n_rows, Role.GUEST, Information.zeros(1, 1))
    dealt = {
        role: DealtSlopes.of(slopes, role, keys[role], each, 0, n_rows, (1, 1))
        for role, each in zip(PARTIES, corrections, strict=True)
    }
    z = (dealt[Role.HOST].r + dealt[Role.GUEST].r).ravel() + np.uint64(OFFSET)
    m, entropy = (np.full((n_rows // 8, 8), start, np.uint64) for start in (OFFSET, 0))
    for role in PARTIES:
        wide = wide_shares(slopes, role, dealt[role], z)
        entropy += wide.entropy
        m += wide.residual + Masks.of(slopes, role, keys[role], 0, n_rows).e_d
    rounded = sum((dealt[role].residual.share(role, m, slopes.residual_cut) for role in PARTIES), np.uint64(0))
    errors = np.asarray(rounded).view(np.int64).astype(np.float64)
    assert abs(errors.mean()) < 4 * errors.std() / np.sqrt(n_rows)
    rms = 1.0 if weight_bits is None else 4.0
    noise = float(errors.std()) * np.sqrt(n_train) * slopes.fine_scale * 2.0**slopes.fmt.f_c * rms
    assert 2.0 ** slopes.gradient_drop(n_train) >= 2**8 * noise * 0.95
    noise = float(entropy.view(np.int64).astype(np.float64).std()) * np.sqrt(n_train) * 2.0**slopes.fmt.f_c * rms
    assert 2.0 ** slopes.entropy_drop(n_train) >= 2**8 * noise * 0.95


# --- a score beyond the range


def test_the_coordinator_reads_a_row_whose_score_is_beyond_the_range() -> None:
    rng = np.random.default_rng(3)
    fmt = Format.of(10**6, 12)
    host = rng.normal(size=(400, 3))
    host[123] = [30.0, -25.0, 28.0]
    guest, y = np.ones((400, 1)), (rng.random(400) < 0.3).astype(float)
    roles = ShareRoles(fmt, host, guest, y)
    w = np.array([3300.0, -3300.0, 3300.0, 0.0])
    assert 2**18 < host[123] @ w[:3] * 32 / fmt.series.period < 2**19

    # The residual of this row is off by 2^64 in units of the last bit of u', so by 2^15.
    jumps = differences(roles, w) / 2.0 ** (15 + fmt.f_d) / fmt.column_scale
    assert np.abs(jumps).max() > 1
    assert any(np.allclose(jump[:3], host[123], atol=0.05) for jump in jumps)

    norms = {Role.HOST: int(np.ceil(np.log2(np.linalg.norm(host, axis=1).max()))), Role.GUEST: 0}
    allowed = Range(norms, dict.fromkeys(norms, -64), fmt.series.period, {Role.HOST: 3, Role.GUEST: 1})
    assert not allowed.contains(w)
    while not allowed.contains(w):
        w = w * 0.9
    jumps = differences(roles, w) / 2.0 ** (15 + fmt.f_d) / fmt.column_scale
    assert np.abs(jumps).max() < 1e-3


def differences(roles: ShareRoles, w: FloatVector) -> FloatMatrix:
    """Return the differences of the sums of 60 rounds at one point, one row for each pair of rounds."""
    sums = []
    with opened_by(roles) as known:
        for _ in range(60):
            roles.round(w)
            sums.append(known.gradient)
    return np.array([(one - other).view(np.int64) for one in sums for other in sums]).astype(float)


# --- two parties whose coefficients differ


def test_the_coordinator_reads_a_row_in_which_one_coefficient_is_off_by_one_unit() -> None:
    """The host's share of cos r is a number of a stream that the coordinator has, so it divides by it."""
    rng = np.random.default_rng(4)
    fmt, row = Format.of(10**6, 12), 5
    host, guest, y = rng.normal(size=(200, 3)), np.ones((200, 1)), (rng.random(200) < 0.5).astype(float)
    roles, w = ShareRoles(fmt, host, guest, y), np.array([0.3, -0.2, 0.1, 0.0])
    share = untile(kernels.stream(roles.keys.host_round, Purpose.DEALT, 0, 16, fmt.n_even), fmt.n_even)[row, :1]
    with opened_by(roles) as known:
        roles.round(w)
        before = known.gradient
    with opened_by(roles, fault=(row, share)) as known:
        roles.round(w)
    jump = known.gradient - before

    candidates = np.arange(-(2**12), 2**12)
    multiples = candidates.astype(np.int64).view(np.uint64) * share
    found = [candidates[np.abs((multiples - each).view(np.int64)).argmin()] for each in jump[:3]]
    assert np.array_equal(found, untile(roles.host, 3)[row])


def test_parties_that_compute_different_coefficients_send_the_coordinator_nothing(
    private_key: PrivateKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    compute, waves = reference.residual, reference.waves
    role: list[Role] = []

    def residual(fmt: Format, who: Role, *arguments: Any, **options: Any) -> kernels.Residual:
        role.append(who)
        try:
            return compute(fmt, who, *arguments, **options)
        finally:
            role.clear()

    def off_by_one(values: Any, n_terms: int) -> Any:
        made = list(waves(values, n_terms))
        if role == [Role.HOST]:
            made[3][0][0, 0] += 2**26
        return made

    monkeypatch.setattr(kernels, "residual", residual)
    monkeypatch.setattr(reference, "waves", off_by_one)
    outcome = run_machines(make_machines(WHOLE, tables_of(WHOLE, weighted=False, seed=1), private_key))

    assert outcome.ended.loss is None
    assert "computed different integers" in outcome.ended.reason
    sums = {
        each.key
        for _, to, each in outcome.traffic
        if to is Role.COORDINATOR and isinstance(each, ElementPiece) and each.kind is Kind.SUMS
    }
    assert sums == {RoundKey(0, 0), RoundKey(1, 1)}  # At w = 0 nothing is computed from scores.


def test_the_first_gradient_needs_no_scores_and_so_has_no_rounding_errors_that_depend_on_masks() -> None:
    rng = np.random.default_rng(5)
    host, guest, y = rng.normal(size=(300, 3)), np.ones((300, 1)), (rng.random(300) < 0.3).astype(float)
    fmt = Format.of(24_000, 12)
    first = [ShareRoles(fmt, host, guest, y).at_zero() for _ in range(3)]
    columns = np.rint(np.column_stack([host, guest]) * fmt.column_scale)
    for each in first:
        assert np.allclose(each, columns.T @ (1 - 2 * y) / fmt.column_scale / 2, rtol=1e-15)


# --- what no rule stands against


def test_a_coordinator_that_deals_false_values_reads_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing but its honesty prevents this, as docs/security.md says: it adds 256 to the residual of one row."""
    rng = np.random.default_rng(6)
    host, guest, y = rng.normal(size=(300, 3)), rng.normal(size=(300, 2)), (rng.random(300) < 0.3).astype(float)
    fmt, row, deal = Format.of(24_000, 12), 77, kernels.deal
    roles = ShareRoles(fmt, host, guest, y)

    def deal_falsely(*arguments: Any) -> tuple[ElementVector, ElementVector]:
        for_host, for_guest = deal(*arguments)
        corrections = grouped(
            for_guest, fmt.n_even
        )  # r without its low bits, which the residual subtracts, is number 2K.
        corrections[row // 8, fmt.n_terms, row % 8] -= np.uint64(1 << (fmt.f_d + 8))
        return for_host, for_guest

    monkeypatch.setattr(kernels, "deal", deal_falsely)
    read = (roles.round(np.zeros(5)).gradient - roles.at_zero()) / 2**8
    assert np.allclose(read, [*host[row], *guest[row]], atol=2e-3)
