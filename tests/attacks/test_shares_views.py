"""Secrecy of the protocol on shares by construction.

For any two tables of the other party there are masks under which everything that a party receives in a session is the
same, bit for bit. So what it receives does not depend on which of the two tables the other party has, as long as the
streams look random. The tests run a session, take other tables, construct these masks, and run a session with them on
the real machines.
"""

from dataclasses import replace

import numpy as np
import pytest

from tests.support.share_views import Randomness, Transcript, image, run_session, substitute
from tests.support.three_machines import Tables, Tamper, make_tables
from trilateral.common.base.arrays import Rows
from trilateral.common.base.roles import Role
from trilateral.common.config.job import JobConfig, Sgd
from trilateral.common.data.party_data import PreparedData
from trilateral.common.paillier.keys import PrivateKey
from trilateral.common.protocol.batches import Batches
from trilateral.common.protocol.messages import ElementPiece, Envelope, Kind, Message, RoundKey, RoundTimedOut
from trilateral.common.shares.keys import Purpose

WHOLE = JobConfig(name="job", dataset="data", protocol="shares", epochs=4, tolerance=0.0, holdout=0.2, evaluate_every=2)
BATCHES = WHOLE.model_copy(update={"algorithm": Sgd(), "batch": 40, "epochs": 2, "evaluate_every": 1})
INFERENCE = WHOLE.model_copy(update={"inference": True, "epochs": 3})
FOLDS = WHOLE.model_copy(update={"folds": 2, "l1": 0.01, "epochs": 2, "evaluate_every": None})
JOBS = pytest.mark.parametrize(
    "job", [WHOLE, BATCHES, INFERENCE, FOLDS], ids=["whole set", "batches", "inference", "folds"]
)
WEIGHTED = pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted rows"])


def tables_of(job: JobConfig, *, weighted: bool, seed: int) -> Tables:
    tables = make_tables(job, n_rows=150, n_host=3, n_guest=2, seed=seed)
    if not weighted:
        return tables
    n_train = len(tables.guest.block.columns)
    weights = np.random.default_rng(seed).integers(16, 128, n_train) / 64
    block = replace(tables.guest.block, sample_weights=weights, weight_bits=6)
    return replace(tables, guest=replace(tables.guest, block=block))


class LostSums:
    """Loses the host's first sums of round 2, so that the round has a second attempt."""

    def __init__(self) -> None:
        self.lost: Message | None = None

    def __call__(self, sender: Role, envelope: Envelope) -> list[Envelope]:
        message = envelope.message
        if self.lost is None and sender is Role.HOST and isinstance(message, ElementPiece):
            if (message.kind, message.key) != (Kind.SUMS, RoundKey(2, 1)):
                return [envelope]
            self.lost = message
            return [Envelope(Role.COORDINATOR, RoundTimedOut(message.key))]
        return [envelope]


def same_view(one: Transcript, other: Transcript, role: Role) -> bool:
    views = [[(sender, image(message, role)) for sender, message in each.view(role)] for each in (one, other)]
    return views[0] == views[1]


def lossy() -> Tamper:
    return LostSums()


@JOBS
@WEIGHTED
@pytest.mark.parametrize("role", [Role.HOST, Role.GUEST])
def test_any_table_of_the_other_party_explains_what_a_party_received(
    job: JobConfig, weighted: bool, role: Role, private_key: PrivateKey
) -> None:
    mine, other = (tables_of(job, weighted=weighted, seed=seed) for seed in (1, 2))
    others = Tables(mine.host, other.guest) if role is Role.HOST else Tables(other.host, mine.guest)
    recorded = run_session(job, mine, private_key, Randomness(7), lossy)
    assert {report.key.attempt for report in recorded.outcome.reports} == {1, 2}
    assert len(recorded.outcome.reports) >= 3

    found = substitute(recorded, role, lambda randomness: run_session(job, others, private_key, randomness, lossy))

    assert same_view(recorded, found, role)
    # The other party had other data, and the coordinator came to other weights.
    peer = Role.GUEST if role is Role.HOST else Role.HOST
    assert not same_view(recorded, found, peer)
    assert not np.allclose(recorded.outcome.coef, found.outcome.coef, atol=0.05)
    # No number changed that the party knows.
    known = [recorded.dealer[role], recorded.parties]
    keys = {keys.of(key) for keys in known for key in [RoundKey(0, 0), *recorded.begun]}
    assert not {key for key, _ in found.randomness.changed()} & keys
    if role is Role.HOST:  # Its shares of the weights are drawn before anything depends on w.
        assert not {number for key, number in found.randomness.changed() if not key}


@pytest.mark.parametrize("role", [Role.HOST, Role.GUEST])
@pytest.mark.parametrize("purpose", [Purpose.COLUMNS, Purpose.SCORES, Purpose.OPENED, Purpose.DEALT, Purpose.SHARES])
def test_without_one_of_the_masks_the_messages_depend_on_the_other_table(
    role: Role, purpose: Purpose, private_key: PrivateKey
) -> None:
    mine, other = (tables_of(WHOLE, weighted=False, seed=seed) for seed in (1, 2))
    others = Tables(mine.host, other.guest) if role is Role.HOST else Tables(other.host, mine.guest)
    recorded = run_session(WHOLE, mine, private_key, Randomness(7, frozenset([purpose])))
    with pytest.raises(AssertionError, match="do not make the messages"):
        substitute(recorded, role, lambda randomness: run_session(WHOLE, others, private_key, randomness), max_runs=25)


@pytest.mark.parametrize("role", [Role.HOST, Role.GUEST])
@pytest.mark.parametrize("purpose", [Purpose.SLOPES, Purpose.DEALT_SLOPES])
def test_without_one_of_the_masks_the_messages_of_inference_depend_on_the_other_table(
    role: Role, purpose: Purpose, private_key: PrivateKey
) -> None:
    mine, other = (tables_of(INFERENCE, weighted=False, seed=seed) for seed in (1, 2))
    others = Tables(mine.host, other.guest) if role is Role.HOST else Tables(other.host, mine.guest)
    recorded = run_session(INFERENCE, mine, private_key, Randomness(7, frozenset([purpose])))
    with pytest.raises(AssertionError, match="do not make the messages"):
        substitute(
            recorded, role, lambda randomness: run_session(INFERENCE, others, private_key, randomness), max_runs=25
        )


def test_without_masks_of_the_guests_products_the_host_sees_its_columns(private_key: PrivateKey) -> None:
    mine, other = (tables_of(INFERENCE, weighted=False, seed=seed) for seed in (1, 2))
    # Of a tie, the guest opens: see `InformationPlan.opener`.
    recorded = run_session(INFERENCE, mine, private_key, Randomness(7, frozenset([Purpose.SLOPE_COLUMNS])))
    others = Tables(mine.host, other.guest)
    with pytest.raises(AssertionError, match="do not make the messages"):
        substitute(
            recorded, Role.HOST, lambda randomness: run_session(INFERENCE, others, private_key, randomness), max_runs=25
        )


@pytest.mark.parametrize("purpose", [Purpose.LABELS, Purpose.WEIGHTS, Purpose.WEIGHTED])
def test_without_a_mask_the_guests_labels_and_weights_of_rows_are_visible(
    purpose: Purpose, private_key: PrivateKey
) -> None:
    mine, other = (tables_of(WHOLE, weighted=True, seed=seed) for seed in (1, 2))
    others = Tables(mine.host, other.guest)
    recorded = run_session(WHOLE, mine, private_key, Randomness(7, frozenset([purpose])))
    with pytest.raises(AssertionError, match="do not make the messages"):
        substitute(
            recorded, Role.HOST, lambda randomness: run_session(WHOLE, others, private_key, randomness), max_runs=25
        )


@pytest.mark.parametrize("purpose", [Purpose.SUMS, Purpose.LINEAR])
def test_without_the_parties_own_masks_the_coordinator_sees_shares_that_depend_on_rows(
    purpose: Purpose, private_key: PrivateKey
) -> None:
    tables = tables_of(WHOLE, weighted=False, seed=1)
    others = shuffled(tables, WHOLE, 3)
    recorded = run_session(WHOLE, tables, private_key, Randomness(7, frozenset([purpose])))
    with pytest.raises(AssertionError, match="do not make the messages"):
        substitute(
            recorded,
            Role.COORDINATOR,
            lambda randomness: run_session(WHOLE, others, private_key, randomness),
            max_runs=25,
        )


def shuffled(tables: Tables, job: JobConfig, seed: int) -> Tables:
    """The same rows in another order within each batch or fold: all sums are the same, and no row is where it was."""
    rng = np.random.default_rng(seed)
    n_train, n_holdout = len(tables.host.block.columns), len(tables.host.block.holdout_columns)
    order = np.arange(n_train)
    batches = Batches.of(job, n_train)
    for number in range(batches.n_parts):
        rows: Rows = batches.part_rows(number)
        order[rows] = rng.permutation(rows)
    holdout = rng.permutation(n_holdout)

    def party(data: PreparedData) -> PreparedData:
        block = data.block
        labels = None if block.labels is None else block.labels[order]
        weights = None if block.sample_weights is None else block.sample_weights[order]
        changed = replace(
            block,
            columns=block.columns[order],
            holdout_columns=block.holdout_columns[holdout],
            labels=labels,
            holdout_labels=None if block.holdout_labels is None else block.holdout_labels[holdout],
            sample_weights=weights,
        )
        return replace(data, block=changed)

    return Tables(party(tables.host), party(tables.guest))


@JOBS
@WEIGHTED
def test_any_tables_with_the_same_rounded_sums_explain_what_the_coordinator_received(
    job: JobConfig, weighted: bool, private_key: PrivateKey
) -> None:
    tables = tables_of(job, weighted=weighted, seed=1)
    others = shuffled(tables, job, 3)
    moved = np.abs(np.asarray(tables.host.block.columns) - np.asarray(others.host.block.columns)).max(axis=1) > 0
    assert moved.mean() > 0.9
    recorded = run_session(job, tables, private_key, Randomness(7), lossy)

    found = substitute(
        recorded, Role.COORDINATOR, lambda randomness: run_session(job, others, private_key, randomness, lossy)
    )

    assert same_view(recorded, found, Role.COORDINATOR)
    assert np.array_equal(recorded.outcome.coef, found.outcome.coef)
    assert not same_view(recorded, found, Role.HOST)
    parties = {recorded.parties.of(key) for key in [RoundKey(0, 0), *recorded.begun]}
    assert {key for key, _ in found.randomness.changed()} <= parties
    assert {purpose for _, purpose in found.randomness.changed()} == {int(Purpose.LINEAR), int(Purpose.SUMS)}
