"""The Fisher information in shares, with the three roles in one function, against floating point."""

import numpy as np
import pytest

from trilateral.common.base.arrays import ElementVector, FloatMatrix, FloatVector
from trilateral.common.base.roles import PARTIES, Role
from trilateral.common.protocol.logistic import probability
from trilateral.common.shares import kernels
from trilateral.common.shares.format import OFFSET, Format
from trilateral.common.shares.information import (
    DealtSlopes,
    Information,
    SlopeFormat,
    add_block,
    add_cross,
    deal_slopes,
    masks_of_products,
    n_packed,
    pack,
    rounded_share,
    scaled,
    slope_share,
)
from trilateral.common.shares.kernels import DealerKeys, Weights
from trilateral.common.shares.keys import Purpose
from trilateral.common.shares.layout import GROUP, grouped, tile
from trilateral.common.shares.ring import cut_share, decode, join_shares

N_ROWS = 480
KEYS = DealerKeys(*(bytes([number]) * 16 for number in (1, 2, 3, 4)))


def information(
    slopes: SlopeFormat, X: dict[Role, FloatMatrix], w: FloatVector, opener: Role, c: FloatVector | None = None
) -> FloatMatrix:
    """The step of inference on one block of rows; the result is what the coordinator reads."""
    fmt, n = slopes.fmt, {role: X[role].shape[1] for role in PARTIES}
    sessions = {Role.HOST: KEYS.host_session, Role.GUEST: KEYS.guest_session}
    rounds = {Role.HOST: KEYS.host_round, Role.GUEST: KEYS.guest_round}
    rng = np.random.default_rng(1)
    own = {role: tile(np.rint(X[role] * fmt.column_scale).astype(np.int32), N_ROWS) for role in PARTIES}
    D = {role: kernels.mask(own[role], sessions[role], Purpose.COLUMNS, 0, n[role]) for role in PARTIES}
    share = {role: np.frombuffer(rng.bytes(8 * len(w)), np.uint64) for role in (Role.HOST,)}
    share[Role.GUEST] = fmt.encode_score_weights(w) - share[Role.HOST]
    parts = {Role.HOST: slice(0, n[Role.HOST]), Role.GUEST: slice(n[Role.HOST], None)}
    masks = {role: np.frombuffer(rng.bytes(8 * n[role]), np.uint64) for role in PARTIES}
    other = {Role.HOST: Role.GUEST, Role.GUEST: Role.HOST}
    sums = {role: Information.zeros(n[Role.HOST], n[Role.GUEST]) for role in Role}
    for_host, for_guest = deal_slopes(
        slopes, KEYS, (masks[Role.HOST], masks[Role.GUEST]), 0, N_ROWS, opener, sums[Role.COORDINATOR]
    )
    dealt = {
        role: DealtSlopes.of(slopes, role, rounds[role], elements, 0, N_ROWS, (n[Role.HOST], n[Role.GUEST]))
        for role, elements in ((Role.HOST, for_host), (Role.GUEST, for_guest))
    }
    z = np.zeros(N_ROWS, np.uint64)
    for role in PARTIES:
        weights = Weights(
            own=share[role][parts[role]],
            opened=share[other[role]][parts[role]] - masks[role],
            other=share[role][parts[other[role]]],
        )
        keys = sessions[role], rounds[role]
        z += kernels.score_part(own[role], D[other[role]], weights, keys, 0, offset=role is Role.HOST)
    streams = {
        role: grouped(
            kernels.stream(rounds[role], Purpose.SLOPES, 0, N_ROWS, slopes.n_masks(role)), slopes.n_masks(role)
        )
        for role in PARTIES
    }
    wide, digests = {}, set()
    for role in PARTIES:
        wide[role], digest = slope_share(slopes, role, dealt[role], z)
        digests.add(digest)
    assert len(digests) == 1
    if c is not None:
        product = {role: each.weighted for role, each in dealt.items() if each.weighted is not None}
        integers = np.ldexp(c, fmt.f_c).astype(np.uint64)
        mask = kernels.stream(KEYS.guest_session, Purpose.WEIGHTS, 0, N_ROWS, 1)
        e_c, integers = streams[Role.HOST][:, 2], integers.reshape(-1, GROUP)
        wide[Role.GUEST] = integers * (wide[Role.GUEST] + wide[Role.HOST] - e_c) + product[Role.GUEST]
        wide[Role.HOST] = (integers - mask.reshape(-1, GROUP)) * e_c + product[Role.HOST]
    m, o = np.full(wide[Role.HOST].shape, OFFSET, np.uint64), np.zeros(wide[Role.HOST].shape, np.uint64)
    for role in PARTIES:
        m += wide[role] + streams[role][:, 0]
    for role in PARTIES:
        o += rounded_share(slopes, role, dealt[role], m) - streams[role][:, 1]
    receiver = other[opener]
    for role in PARTIES:
        h, g, V = o + streams[role][:, 1], streams[role][:, 1], dealt[role].V
        add_block(own[role], D[role], scaled(own[role], h), V[role], sums[role].of(role))
        theirs = D[other[role]]
        add_block(theirs, theirs, scaled(theirs, g), V[other[role]], sums[role].of(other[role]))
    M = masks_of_products(rounds[opener], 0, N_ROWS, n[opener])
    Q = scaled(own[opener], o + streams[opener][:, 1]) + dealt[opener].V[opener] - M
    add_cross(D[receiver], M, sums[opener], opener)
    Y = scaled(D[opener], streams[receiver][:, 1]) + dealt[receiver].V[opener]
    add_cross(own[receiver], Y + Q, sums[receiver], opener)
    drop = slopes.drop(N_ROWS)
    mask_of_sums = np.frombuffer(rng.bytes(8 * n_packed(len(w))), np.uint64)
    sent: dict[Role, ElementVector] = {
        role: cut_share(sums[role].packed(), mask_of_sums, drop, subtract=role is Role.GUEST) for role in PARTIES
    }
    joined = join_shares(sent[Role.HOST], sent[Role.GUEST], sums[Role.COORDINATOR].packed(), drop)
    return decode(joined, slopes.sum_bits)


def exact(X: FloatMatrix, w: FloatVector, c: FloatVector | None = None) -> FloatVector:
    """The same in floating point, packed."""
    p = probability(X @ w)
    W = p * (1 - p) * (1 if c is None else c)
    return pack(X.T @ (X * W[:, np.newaxis]))


def columns(n_host: int, n_guest: int, scale: int) -> tuple[dict[Role, FloatMatrix], FloatVector]:
    """Columns of mean square 1 that are whole numbers once they are scaled, the last of them ones, and weights."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N_ROWS, n_host + n_guest)) @ (np.eye(n_host + n_guest) + 0.3)
    X[:, -1] = 1
    X /= np.sqrt((X**2).mean(axis=0)) * 1.001
    X = np.rint(X * scale) / scale
    return {Role.HOST: X[:, :n_host], Role.GUEST: X[:, n_host:]}, rng.normal(size=n_host + n_guest)


@pytest.mark.parametrize("max_score", [8, 12, 24])
@pytest.mark.parametrize("opener", PARTIES)
@pytest.mark.parametrize("weight_bits", [None, 0, 6])
def test_the_coordinator_reads_the_fisher_information(max_score: int, opener: Role, weight_bits: int | None) -> None:
    fmt = Format.of(N_ROWS, max_score, weight_bits)
    slopes, (X, w) = SlopeFormat(fmt, N_ROWS, 3), columns(3, 2, fmt.column_scale)
    c = None
    if weight_bits is not None:
        c = np.random.default_rng(3).integers(0, 8 << weight_bits, N_ROWS) / 2.0**weight_bits
    seen, wanted = information(slopes, X, w, opener, c), exact(np.hstack([X[role] for role in PARTIES]), w, c)
    # The series of the slope has an error of 1e-5, which the rows even out.
    assert np.abs(seen - wanted).max() < 3e-6 * np.abs(wanted).max() + 4 * slopes.dropped(N_ROWS)
    assert slopes.dropped(N_ROWS) < 2e-5 * np.abs(wanted).max()


def test_the_sums_stay_in_range_for_any_job() -> None:
    for n_rows in (1000, 24_000, 120_000, 10**6, 10**7):
        for bits in (None, 0, 6):
            fmt = Format.of(n_rows, 12, bits)
            slopes = SlopeFormat(fmt, n_rows, 7)
            largest_weight = 1 if bits is None else 64
            assert n_rows * fmt.column_scale**2 * largest_weight * 2**slopes.slope_bits <= 2**64
            assert 0 < slopes.cut < 62
            assert slopes.drop(n_rows) < 60
            # A mean slope of 0.1 is known to 1e-3 everywhere, and to 1e-4 without weights.
            assert slopes.dropped(n_rows) < (1e-4 if bits is None else 5e-4) * 0.1 * n_rows
