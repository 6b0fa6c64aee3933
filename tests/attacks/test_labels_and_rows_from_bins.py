"""Attacks on the counts of a bins job, each with and without its protection.

The guest looks for the members of the host's bins, the host for labels.
"""

import math
from contextlib import suppress
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from tests.support.bins import count_labels, guest_data, host_data, make_machines, run_bins
from trilateral.common.base.arrays import ElementVector
from trilateral.common.base.errors import PolicyError
from trilateral.common.base.roles import Role
from trilateral.common.config.process import Policy
from trilateral.common.jobs.account import Account
from trilateral.common.jobs.ledger import Ledger
from trilateral.common.protocol.binning import Counts, FineBins, MergeRule
from trilateral.common.protocol.label_secrecy import LabelSecrecy
from trilateral.common.protocol.messages import ElementPiece, Kind, MergedColumn
from trilateral.common.protocol.scales import GRADIENT_BITS
from trilateral.common.protocol.shares.counting import count_bits, sent_share
from trilateral.common.shares import kernels
from trilateral.common.shares.keys import Purpose
from trilateral.common.shares.layout import tile
from trilateral.guest_party.bins import GuestBins, released_equations

N_ROWS = 64
N_UNKNOWN = 12
KEYS = bytes(16), bytes(range(16))
"""Of the streams of the host and of the guest with the coordinator."""


def _exchange(q: ElementVector, members: np.ndarray) -> tuple[ElementVector, ElementVector, ElementVector]:
    """Return what the guest has of one bin: D_A and D_q; and the host's part of h, which it sends under a mask."""
    host, guest = KEYS
    column = tile(members.astype(np.int32)[:, np.newaxis], N_ROWS)
    masked_column = kernels.mask(column, host, Purpose.COLUMNS, 0, 1)
    masked_labels = kernels.mask(q, guest, Purpose.LABELS, 0, 1)
    part = np.zeros(1, np.uint64)
    kernels.add_mask_products(host, Purpose.COLUMNS, 0, 1, masked_labels, part)
    return masked_column, masked_labels, part


def _fitting_members(
    known: np.ndarray, masked_column: ElementVector, masked_labels: ElementVector, sent: ElementVector, bits: int
) -> list[tuple[int, ...]]:
    """As the guest: try all members of the unknown rows. U_A = X - D_A, and the host has sent U_A' D_q."""
    fitting = []
    for guess in product((0, 1), repeat=N_UNKNOWN):
        members = np.concatenate([known, guess]).astype(np.uint64)
        expected = ((members - masked_column) * masked_labels).sum(dtype=np.uint64) << np.uint64(64 - bits)
        if expected == sent[0]:
            fitting.append(guess)
    return fitting


def _signs(rng: np.random.Generator) -> ElementVector:
    return rng.choice([-1, 1], N_ROWS).astype(np.int64).view(np.uint64)


def test_the_guest_finds_members_of_a_bin_in_the_hosts_part_unless_it_is_masked() -> None:
    rng = np.random.default_rng(1)
    members = rng.integers(0, 2, N_ROWS)
    known, secret = members[:-N_UNKNOWN], tuple(members[-N_UNKNOWN:].tolist())
    masked_column, masked_labels, part = _exchange(_signs(rng), members)

    # Without the mask, the one right guess of 4,096 fits: the equation has 64 bits.
    assert _fitting_members(known, masked_column, masked_labels, part, 64) == [secret]

    # With the mask, what is sent is uniform: no guess fits better than another.
    bits = count_bits(N_ROWS)
    sent = sent_share(KEYS[0], part, bits, subtract=False)
    fitting = _fitting_members(known, masked_column, masked_labels, sent, bits)
    assert secret not in fitting
    assert len(fitting) == pytest.approx(2**N_UNKNOWN / 2**bits, abs=4 * math.sqrt(2**N_UNKNOWN / 2**bits) + 1)


def test_each_part_that_the_guest_receives_is_uniform_by_itself() -> None:
    # One job after the other on the same rows: the top bits of each part look like fair coins.
    codes = np.stack([np.arange(640) % 8] * 8, axis=1)
    labels = np.where(np.arange(640) % 3, 1.0, -1.0)
    parts: dict[Role, list[ElementVector]] = {Role.HOST: [], Role.COORDINATOR: []}
    for _ in range(40):
        for sender, _, message in count_labels(host_data(codes), guest_data(labels)).traffic:
            if isinstance(message, ElementPiece) and message.kind is Kind.COUNTS:
                parts[sender].append(message.elements)
    for elements in parts.values():
        ones = np.mean([each >> np.uint64(63) for each in elements])
        assert ones == pytest.approx(0.5, abs=5 * 0.5 / math.sqrt(40 * 64))
        # And nothing lies below the k bits.
        assert not any((each << np.uint64(count_bits(640))).any() for each in elements)


def test_a_guest_with_powers_for_labels_reads_members_of_a_bin_unless_only_k_bits_are_opened() -> None:
    rng = np.random.default_rng(2)
    members = rng.integers(0, 2, N_ROWS)
    q = np.array([4**row if row < 31 else 0 for row in range(N_ROWS)], np.uint64)
    masked_column, _, part = _exchange(q, members)
    own = np.zeros(1, np.uint64)
    kernels.add_products(masked_column, q, own)
    coordinator = np.zeros(1, np.uint64)
    labels = kernels.stream(KEYS[1], Purpose.LABELS, 0, N_ROWS, 1)
    kernels.add_mask_products(KEYS[0], Purpose.COLUMNS, 0, 1, labels, coordinator)

    def read(bits: int) -> list[int]:
        host, dealt = (
            sent_share(KEYS[0], each, bits, subtract=subtract)
            for each, subtract in ((part, False), (coordinator, True))
        )
        total = int(((own << np.uint64(64 - bits)) + host + dealt)[0]) >> (64 - bits)
        return [total >> (2 * row) & 1 for row in range(31)]

    assert read(64) == members[:31].tolist()
    # The cut leaves the k bits that an honest count has, and no further row.
    bits = count_bits(N_ROWS)
    assert read(bits)[: bits // 2] == members[: bits // 2].tolist()
    assert not any(read(bits)[bits // 2 + 1 :])


def test_a_guest_that_marks_one_row_reads_its_fine_bins_and_the_hosts_ledger_counts_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What remains: the fine counts of a label that one row has are the bins of this row, in all columns."""
    n_rows, n_bins = 3_000, 20
    codes = np.random.default_rng(6).integers(0, n_bins, (n_rows, 3)).astype(np.uint8)
    opened: list[Counts] = []
    merge = GuestBins._merge

    def look(guest: GuestBins, fine: FineBins, n_positive: Counts) -> MergedColumn:
        opened.append(n_positive)
        return merge(guest, fine, n_positive)

    monkeypatch.setattr(GuestBins, "_merge", look)
    ledger, policy = Ledger(tmp_path, Role.HOST), Policy(share_bins="guest")
    account = Account(ledger, policy, "people", Role.HOST)
    most, due, n_read = account.max_equations(n_rows, None), 0, 0
    with suppress(PolicyError):
        for marked in range(n_rows):
            opened.clear()
            labels = np.where(np.arange(n_rows) == marked, 1.0, -1.0)
            counted = count_labels(host_data(codes), guest_data(labels))
            due = counted.due[Role.HOST]
            account.spend_counts(due, most)
            assert [int(each.argmax()) for each in opened] == codes[marked].tolist()
            # Neither the host nor the guest's file gets such counts: one merged bin is left.
            assert all(len(each.n_positive) == 1 for each in counted.results[Role.GUEST].merged)
            n_read += 1
    with pytest.raises(PolicyError, match=r"policy\.min_rows_per_equation"):
        account.spend_counts(due, most)
    assert 0 < n_read <= n_rows / policy.min_rows_per_equation / (2 * n_bins)


# --- the host


def _host_reads_labels(labels: np.ndarray, first: int, n_read: int) -> tuple[list[float], int]:
    """As a host that forges columns: rows of the weights 1, 2, 4, ... in one bin, and the rest in the other.

    Returns:
        The labels that it reads in one released count, and the equations that the guest counts.
    """
    n_rows = len(labels)
    weights = np.zeros(n_rows, np.int64)
    weights[first : first + n_read] = 2 ** np.arange(n_read)
    # Sizes that the guest's check of one bin accepts, and rows of the other bin that keep the sums right.
    released = int(weights[labels > 0].sum())
    fine = FineBins((n_rows // 2, n_rows - n_rows // 2), True)
    merged = MergedColumn((0, 1), (released, int((labels > 0).sum())))
    read = [1.0 if released >> bit & 1 else -1.0 for bit in range(n_read)]
    return read, released_equations([fine], [merged], n_rows)


def test_a_host_that_spells_labels_in_counts_is_stopped_by_the_guests_ledger(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    n_rows = 4_000
    labels = np.where(rng.random(n_rows) < 0.2, 1.0, -1.0)
    n_read = int(math.log2(n_rows))

    # Without the ledger, enough jobs read the labels of all rows.
    found = [
        label for first in range(0, n_rows - n_read, n_read) for label in _host_reads_labels(labels, first, n_read)[0]
    ]
    assert found == labels[: len(found)].tolist()
    assert len(found) > 0.99 * n_rows

    # With the ledger, the bits of all released counts together stay below half of the entropy of the labels.
    policy = Policy()
    account = Account(Ledger(tmp_path, Role.GUEST), policy, "people", Role.GUEST)
    secrecy = LabelSecrecy.of_result(labels, None)
    most = account.max_equations(n_rows, secrecy)
    n_found = 0
    with suppress(PolicyError):
        for first in range(0, n_rows, n_read):
            read, equations = _host_reads_labels(labels, first, n_read)
            account.spend_counts(equations + 1, most)
            n_found += len(read)
    with pytest.raises(PolicyError, match="min_label_bits"):
        account.spend_counts(equations + 1, most)
    assert n_found < secrecy.batch_bits[0] * GRADIENT_BITS / policy.min_label_bits
    assert n_found < 0.1 * n_rows


def test_two_bins_that_differ_by_one_row_show_its_label_and_the_ledger_counts_them() -> None:
    """What remains: exact counts. A host that may see counts learns the labels of rows that it chooses, one a column.

    Each column costs it several equations, so it cannot go on for long.
    """
    labels = np.where(np.random.default_rng(4).random(600) < 0.3, 1.0, -1.0)
    below, moved = np.arange(600) < 300, 17
    changed = below.copy()
    changed[moved] = False
    codes = np.stack([below, changed], axis=1).astype(np.uint8)

    counted = count_labels(host_data(codes), guest_data(labels), rule=MergeRule(8, 10, 1))

    first, second = counted.results[Role.HOST].merged
    difference = np.bincount(first.groups, minlength=2)
    assert difference.tolist() == [1, 1]
    positive = first.n_positive[first.groups[1]] - second.n_positive[second.groups[1]]
    assert positive == (labels[moved] > 0)
    # Each column counts as 2 log2(601) + 1 bits, of which the label is one.
    assert counted.due[Role.GUEST] >= 2 * 2 * math.log2(601) / GRADIENT_BITS


@pytest.mark.parametrize("keep_from", [0, 1])
@pytest.mark.parametrize("ordered", [True, False])
def test_a_small_bin_is_merged_before_the_host_is_told(keep_from: int, ordered: bool) -> None:
    # Also if the host asks to keep its bins, however few rows it says are enough.
    labels = np.where(np.random.default_rng(5).random(2_000) < 0.3, 1.0, -1.0)
    codes = np.where(np.arange(2_000) < 12, 0, 1 + np.arange(2_000) % 4).astype(np.uint8)[:, np.newaxis]

    host = host_data(codes, ordered=[ordered])
    host = replace(host, bins=[replace(fine, keep_from=keep_from) for fine in host.bins])
    lax = count_labels(host, guest_data(labels), rule=MergeRule(8, 1, 1))
    strict = count_labels(host, guest_data(labels), rule=MergeRule(8, 1, 20))

    def smallest(result: MergedColumn) -> int:
        sizes = np.bincount(np.asarray(result.groups)[codes[:, 0]])
        return int(min(min(n, size - n) for n, size in zip(result.n_positive, sizes, strict=True)))

    assert smallest(lax.results[Role.HOST].merged[0]) < 12
    assert smallest(strict.results[Role.HOST].merged[0]) >= 20


@pytest.mark.parametrize("keep_from", [0, 1])
def test_a_host_that_calls_all_other_rows_missing_is_not_told_the_labels_of_a_few(keep_from: int) -> None:
    labels = np.where(np.random.default_rng(5).random(2_000) < 0.3, 1.0, -1.0)
    few = np.arange(2_000) < 10
    host = host_data(np.where(few, 0, 1).astype(np.uint8)[:, np.newaxis], has_missing=True)
    host = replace(host, bins=[replace(fine, keep_from=keep_from) for fine in host.bins])

    lax = count_labels(host, guest_data(labels), rule=MergeRule(8, 1, 1))
    strict = count_labels(host, guest_data(labels), rule=MergeRule(8, 1, 20))

    # A bin of the ten rows would tell how many of them are positive.
    assert lax.results[Role.HOST].merged[0].n_positive[0] == (labels[few] > 0).sum()
    assert strict.results[Role.HOST].merged[0].n_positive == ((labels > 0).sum(),)


def test_the_coordinator_sees_no_count_and_the_host_none_that_the_guest_keeps() -> None:
    codes = np.stack([np.arange(640) % 8] * 3, axis=1)
    labels = np.where(np.arange(640) % 8 < 3, 1.0, -1.0)
    counted = run_bins(make_machines(host_data(codes), guest_data(labels), to_host=False))
    to_coordinator = {type(message).__name__ for _, to, message in counted.traffic if to is Role.COORDINATOR}
    assert to_coordinator == {"Ready", "Finished", "JobEnded"}
    # Other labels change nothing that the host can tell from random numbers.
    other = run_bins(make_machines(host_data(codes), guest_data(-labels), to_host=False))
    shapes = [
        [
            (type(m).__name__, getattr(getattr(m, "elements", None), "shape", None))
            for _, to, m in each.traffic
            if to is Role.HOST
        ]
        for each in (counted, other)
    ]
    assert shapes[0] == shapes[1]
