"""The Fisher information and the fine gradient in shares, with the three roles in one function, in floating point."""

import math

import numpy as np
import pytest

from trilateral.common.base.arrays import FloatMatrix, FloatVector
from trilateral.common.base.roles import PARTIES, Role
from trilateral.common.protocol.logistic import probability
from trilateral.common.shares import kernels
from trilateral.common.shares.format import OFFSET, PERIOD_BITS, Format
from trilateral.common.shares.information import (
    GRADIENT_LIMIT_BITS,
    LOSS_LIMIT,
    MAX_PERIODS,
    DealtSlopes,
    Information,
    Masks,
    SlopeFormat,
    add_block,
    add_cross,
    deal_slopes,
    masks_of_products,
    pack,
    scaled,
    wide_shares,
)
from trilateral.common.shares.kernels import DealerKeys, Weights
from trilateral.common.shares.keys import Purpose
from trilateral.common.shares.layout import GROUP, tile
from trilateral.common.shares.reference import Elements
from trilateral.common.shares.ring import cut_share, decode, decode_near, join_shares

N_ROWS = 480
KEYS = DealerKeys(*(bytes([number]) * 16 for number in (1, 2, 3, 4)))


def information(
    slopes: SlopeFormat,
    X: dict[Role, FloatMatrix],
    w: FloatVector,
    opener: Role,
    labels: FloatVector,
    c: FloatVector | None = None,
) -> tuple[FloatVector, FloatVector, float]:
    """The step of inference on one block of rows: the information, the gradient and the sum of the entropies C reads.

    C knows the last to a hundredth of its bound, so that the sum may wrap around.
    """
    fmt, n = slopes.fmt, {role: X[role].shape[1] for role in PARTIES}
    sessions = {Role.HOST: KEYS.host_session, Role.GUEST: KEYS.guest_session}
    rounds = {Role.HOST: KEYS.host_round, Role.GUEST: KEYS.guest_round}
    rng = np.random.default_rng(1)
    own = {role: tile(np.rint(X[role] * slopes.column_scale).astype(np.int32), N_ROWS) for role in PARTIES}
    keys, purpose = (rounds, Purpose.INFORMATION_COLUMNS) if slopes.has_own_columns else (sessions, Purpose.COLUMNS)
    D = {role: kernels.mask(own[role], keys[role], purpose, 0, n[role]) for role in PARTIES}
    fine = {role: tile(np.rint(X[role] * slopes.fine_scale).astype(np.int32), N_ROWS) for role in PARTIES}
    fine_D = {role: kernels.mask(fine[role], rounds[role], Purpose.COLUMNS, 0, n[role]) for role in PARTIES}
    share = {role: np.frombuffer(rng.bytes(8 * len(w)), np.uint64) for role in (Role.HOST,)}
    share[Role.GUEST] = slopes.fine.encode_score_weights(w) - share[Role.HOST]
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
        pair = rounds[role], rounds[role]
        z += kernels.score_part(fine[role], fine_D[other[role]], weights, pair, 0, offset=role is Role.HOST)
    streams = {role: Masks.of(slopes, role, rounds[role], 0, N_ROWS) for role in PARTIES}
    computed = {role: wide_shares(slopes, role, dealt[role], z) for role in PARTIES}
    wide, residual, entropy = (
        {role: getattr(each, name) for role, each in computed.items()} for name in ("slope", "residual", "entropy")
    )
    signs = (1 - 2 * labels).astype(np.int64).view(np.uint64).reshape(-1, GROUP)
    residual[Role.GUEST] += signs << np.uint64(slopes.residual_wide - 1)
    assert len({each.digest for each in computed.values()}) == 1

    def weigh(shares: dict[Role, Elements], number: int) -> dict[Role, Elements]:
        """Multiply shares by c."""
        if c is None:
            return shares
        product = {role: each.weighted[number] for role, each in dealt.items()}
        integers = np.ldexp(c, fmt.f_c).astype(np.uint64).reshape(-1, GROUP)
        mask = kernels.stream(KEYS.guest_session, Purpose.WEIGHTS, 0, N_ROWS, 1).reshape(-1, GROUP)
        e_c = streams[Role.HOST].unweighted[number]
        return {
            Role.GUEST: integers * (shares[Role.GUEST] + shares[Role.HOST] - e_c) + product[Role.GUEST],
            Role.HOST: (integers - mask) * e_c + product[Role.HOST],
        }

    wide, entropy = weigh(wide, 0), weigh(entropy, 1)
    for role in PARTIES:
        sums[role].entropy[:] = entropy[role].sum(dtype=np.uint64)
    m, m_d, o, o_d = (np.full(z.reshape(-1, GROUP).shape, start, np.uint64) for start in (OFFSET, OFFSET, 0, 0))
    for role in PARTIES:
        m += wide[role] + streams[role].e
        m_d += residual[role] + streams[role].e_d
    for role in PARTIES:
        o += dealt[role].slopes.share(role, m, slopes.cut) - streams[role].g
    rounded = weigh({role: dealt[role].residual.share(role, m_d, slopes.residual_cut) for role in PARTIES}, 2)
    for role in PARTIES:
        o_d += rounded[role] - streams[role].g_d
    for role in PARTIES:
        kernels.add_products(fine[role], (o_d + streams[role].g_d).ravel(), sums[role].gradient[role])
        kernels.add_products(fine_D[other[role]], streams[role].g_d.ravel(), sums[role].gradient[other[role]])
    receiver = other[opener]
    for role in PARTIES:
        h, g, V = o + streams[role].g, streams[role].g, dealt[role].V
        add_block(own[role], D[role], scaled(own[role], h), V[role], sums[role].of(role))
        theirs = D[other[role]]
        add_block(theirs, theirs, scaled(theirs, g), V[other[role]], sums[role].of(other[role]))
    M = masks_of_products(rounds[opener], 0, N_ROWS, n[opener])
    Q = scaled(own[opener], o + streams[opener].g) + joined_V(dealt[opener], opener) - M
    add_cross(D[receiver], M, sums[opener], opener)
    Y = scaled(D[opener], streams[receiver].g) + joined_V(dealt[receiver], opener)
    add_cross(own[receiver], Y + Q, sums[receiver], opener)
    read = []
    for share_of, drop in (
        (Information.packed, slopes.drop(N_ROWS)),
        (Information.joint_gradient, slopes.gradient_drop(N_ROWS)),
        (lambda each: each.entropy, slopes.entropy_drop(N_ROWS)),
    ):
        shares = {role: share_of(each) for role, each in sums.items()}
        mask = np.frombuffer(rng.bytes(8 * len(shares[Role.HOST])), np.uint64)
        host, guest = (cut_share(shares[role], mask, drop, subtract=role is Role.GUEST) for role in PARTIES)
        read.append(join_shares(host, guest, shares[Role.COORDINATOR], drop))
    scores, weight = np.hstack([X[role] for role in PARTIES]) @ w, np.ones(N_ROWS) if c is None else c
    constant = slopes.constant_entropy(float(weight.sum()), 0)
    known = np.array([float(weight @ entropy_of(scores)) - constant + 0.9 * LOSS_LIMIT * weight.sum() / 4])
    (found,) = decode_near(read[2], slopes.entropy_bits + fmt.f_c, known)
    return decode(read[0], slopes.sum_bits), decode(read[1], slopes.gradient_bits), found + constant


def joined_V(dealt: DealtSlopes, role: Role) -> Elements:
    """The values of all columns of a party, in order."""
    first, second = dealt.V[role]
    joined: Elements = np.empty((len(first) + len(second), *first.shape[1:]), np.uint64)
    joined[::2], joined[1::2] = first, second
    return joined


def entropy_of(scores: FloatVector) -> FloatVector:
    """H of each row."""
    p = probability(np.abs(scores))
    return np.asarray(np.log1p(np.exp(-np.abs(scores))) + np.abs(scores) * (1 - p))


def exact(X: FloatMatrix, scores: FloatVector, c: FloatVector | None = None) -> FloatVector:
    """The information in floating point, packed."""
    p = probability(scores)
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
def test_the_coordinator_reads_the_fisher_information_and_a_fine_gradient(
    max_score: int, opener: Role, weight_bits: int | None
) -> None:
    fmt = Format.of(N_ROWS, max_score, weight_bits)
    slopes = SlopeFormat.of(fmt, N_ROWS, 3)
    X, w = columns(3, 2, slopes.column_scale)
    c = None
    if weight_bits is not None:
        c = np.random.default_rng(3).integers(0, 8 << weight_bits, N_ROWS) / 2.0**weight_bits
    joined = np.hstack([X[role] for role in PARTIES])
    fine = np.rint(joined * slopes.fine_scale) / slopes.fine_scale
    # Labels to which w nearly fits: the gradient must be small.
    labels = (np.random.default_rng(4).random(N_ROWS) < probability(fine @ w)).astype(np.float64)
    seen, gradient, entropy = information(slopes, X, w, opener, labels, c)
    wanted = exact(joined, fine @ w, c)
    # The series of the slope has an error of 3e-7.
    assert np.abs(seen - wanted).max() < 3e-7 * np.abs(wanted).max() + 4 * slopes.dropped(N_ROWS)
    assert slopes.dropped(N_ROWS) < 2e-5 * np.abs(wanted).max()
    residual = (probability(fine @ w) - labels) * (1 if c is None else c)
    error = float(np.abs(gradient - fine.T @ residual).max())
    # The series has an error of 7e-8.
    assert error < 1e-7 * np.abs(residual).sum() + 4 * slopes.gradient_noise(N_ROWS)
    assert slopes.gradient_noise(N_ROWS) < {None: 1e-4, 0: 2e-4, 6: 5e-4}[weight_bits]
    weights = np.ones(N_ROWS) if c is None else c
    dropped = 2.0 ** (slopes.entropy_drop(N_ROWS) - slopes.entropy_bits - fmt.f_c) / math.sqrt(6)
    assert abs(entropy - float(weights @ entropy_of(fine @ w))) < 2e-7 * weights.sum() + 4 * dropped
    assert dropped < {None: 3e-8, 0: 1e-6, 6: 4e-6}[weight_bits] * weights.sum()


def test_the_sums_stay_in_range_for_any_job() -> None:
    for n_rows in (1000, 24_000, 120_000, 10**6, 10**7):
        for bits in (None, 0, 6):
            fmt = Format.of(n_rows, 12, bits)
            slopes = SlopeFormat.of(fmt, n_rows, 7)
            largest_weight = 1 if bits is None else 64
            assert n_rows * slopes.column_scale**2 * largest_weight * 2**slopes.slope_bits <= 2**64
            assert 0 < slopes.cut < 62
            assert slopes.drop(n_rows) < 60
            largest_gradient = n_rows * 2.0**-GRADIENT_LIMIT_BITS * (1 if bits is None else 4)
            assert largest_gradient * slopes.fine_scale * 2 ** (slopes.residual_bits + fmt.f_c) <= 2**63
            # The mean loss is known to LOSS_LIMIT, and sample weights have a mean of at most 4.
            largest_sum = n_rows * LOSS_LIMIT * (1 if bits is None else 4)
            assert largest_sum * 2 ** (slopes.entropy_bits + fmt.f_c) <= 2**63
            assert slopes.entropy_bits > slopes.wave_bits
            assert 0 < slopes.residual_cut < 62
            assert slopes.residual_wide >= PERIOD_BITS
            assert (MAX_PERIODS + 1) * 2**slopes.residual_wide <= 2**62
            # An element of a gradient varies by sqrt(n) / 4, and with the root mean square of the weights, at least 2.
            deviation = math.sqrt(n_rows) / 4 * (1 if bits is None else 2)
            assert slopes.gradient_noise(n_rows) < (1e-4 if bits is None else 2e-3) * deviation
            # A mean slope of 0.1 is known to 1e-3 everywhere, and to 1e-4 without weights.
            assert slopes.dropped(n_rows) < (1e-4 if bits is None else 5e-4) * 0.1 * n_rows
