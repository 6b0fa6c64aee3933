"""Bins jobs in one process: the counts are exact, go to the guest alone, and nothing else is accepted."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.bins import count_labels, guest_data, host_data, make_machines, run_bins
from trilateral.common.base.errors import DataError, ProtocolError
from trilateral.common.base.roles import Role
from trilateral.common.protocol.binning import FineBins, MergeRule, choose_groups, sum_groups
from trilateral.common.protocol.messages import (
    BinSizes,
    ElementPiece,
    Envelope,
    IdProof,
    JobEnded,
    Kind,
    MergedBins,
    MergedColumn,
    RowsDone,
)
from trilateral.common.protocol.shares.counting import count_bits, open_counts, sent_share
from trilateral.common.protocol.shares.session import SESSION
from trilateral.coordinator.bins import COUNTED


def rows(n_rows: int = 700, n_bins: tuple[int, ...] = (6, 3, 20), seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    codes = np.stack([rng.permutation(np.arange(n_rows) % each) for each in n_bins], axis=1)
    labels = np.where(rng.random(n_rows) < 0.1 + 0.1 * codes[:, 0], 1.0, -1.0)
    return codes, labels


@pytest.mark.parametrize("n_rows", [640, 700, 20_011])
def test_the_guest_opens_exact_counts_and_merges_them(n_rows: int) -> None:
    codes, labels = rows(n_rows)
    rule = MergeRule(4, 30, 5)

    counted = count_labels(host_data(codes, ordered=[True, False, True]), guest_data(labels), rule=rule)

    result = counted.results[Role.GUEST]
    for column, fine, merged in zip(codes.T, result.bins, result.merged, strict=True):
        positive = np.bincount(column[labels > 0], minlength=len(fine.n_rows))
        assert list(merged.groups) == choose_groups(fine, positive, rule)
        assert merged.n_positive == tuple(sum_groups(positive, merged.groups))
    assert counted.results[Role.HOST].merged == result.merged
    assert counted.ended == JobEnded(COUNTED, counted=True)
    assert counted.due[Role.HOST] == 40  # Two numbers for each of 20 bins.


def test_bins_that_the_host_keeps_are_merged_only_if_they_lack_rows() -> None:
    codes, labels = rows(700, (6, 20, 20))
    labels[codes[:, 1] == 3] = 1.0
    host = host_data(codes, ordered=[True, True, False])
    kept = [replace(fine, keep_from=each) for fine, each in zip(host.bins, (10, 10, 36), strict=True)]

    counted = count_labels(replace(host, bins=kept), guest_data(labels), rule=MergeRule(2, 200, 1))

    first, second, third = (list(each.groups) for each in counted.results[Role.HOST].merged)
    assert first == list(range(6))
    # The bin without a negative row joins the smaller neighbour, the first of two that are equal.
    assert second == [0, 1, 2, *range(2, 19)]
    # Bins of 35 rows are too few for this column.
    assert sum_groups(np.array(kept[2].n_rows), third).min() >= 36


def test_columns_may_have_more_bins_together_than_a_byte_can_number() -> None:
    codes, labels = rows(1000, (20,) * 15)
    counted = count_labels(host_data(codes), guest_data(labels), rule=MergeRule(20, 1, 1))
    result = counted.results[Role.GUEST]
    for column, merged in zip(codes.T, result.merged, strict=True):
        positive = np.bincount(column[labels > 0], minlength=20)
        assert merged.n_positive == tuple(sum_groups(positive, merged.groups))


def test_a_guest_that_releases_nothing_tells_the_host_nothing() -> None:
    codes, labels = rows()
    counted = count_labels(host_data(codes), guest_data(labels), to_host=False)
    assert counted.results[Role.GUEST].merged
    assert not counted.results[Role.HOST].merged
    assert counted.due[Role.GUEST] == 1


def test_nothing_is_released_if_a_label_has_fewer_rows_than_a_bin_needs() -> None:
    codes, labels = rows()
    labels = np.where(np.arange(len(labels)) < 9, 1.0, -1.0)
    counted = count_labels(host_data(codes), guest_data(labels), rule=MergeRule(8, 10, 10))
    assert not counted.results[Role.HOST].merged


def test_equations_are_counted_before_they_leave() -> None:
    codes, labels = rows()
    counted = count_labels(host_data(codes), guest_data(labels))
    kinds = [(sender, type(message).__name__) for sender, _, message in counted.traffic]
    assert kinds.index((Role.HOST, "CountsDue")) < kinds.index((Role.HOST, "BinSizes"))
    assert kinds.index((Role.GUEST, "CountsDue")) < kinds.index((Role.GUEST, "MergedBins"))


@settings(max_examples=30)
@given(n_rows=st.integers(1, 2**20), data=st.data())
def test_k_bits_hold_every_count(n_rows: int, data: st.DataObject) -> None:
    bits, key = count_bits(n_rows), bytes(16)
    assert 2**bits >= 2 * n_rows + 1 > 2 ** (bits - 1)
    h = np.array(data.draw(st.lists(st.integers(-n_rows, n_rows), min_size=1, max_size=5)))
    parts = [np.random.default_rng(0).integers(0, 2**64, len(h), np.uint64) for _ in range(2)]
    own = h.astype(np.int64).view(np.uint64) - parts[0] - parts[1]
    host, dealt = (sent_share(key, part, bits, subtract=place > 0) for place, part in enumerate(parts))
    assert open_counts(own, host, dealt, bits).tolist() == h.tolist()


def test_messages_that_come_twice_change_nothing() -> None:
    codes, labels = rows()
    once = count_labels(host_data(codes), guest_data(labels))
    twice = run_bins(
        make_machines(host_data(codes), guest_data(labels)), tamper=lambda sender, envelope: [envelope, envelope]
    )
    assert twice.results[Role.GUEST].merged == once.results[Role.GUEST].merged
    assert twice.results[Role.HOST].merged == once.results[Role.HOST].merged


@pytest.mark.parametrize("sender", [Role.HOST, Role.COORDINATOR])
def test_a_session_that_loses_a_part_of_the_counts_opens_nothing_and_the_next_one_counts_the_same(sender: Role) -> None:
    codes, labels = rows()
    lost: list[Envelope] = []

    def lose(of: Role, envelope: Envelope) -> list[Envelope]:
        message = envelope.message
        if of is sender and isinstance(message, ElementPiece) and message.kind is Kind.COUNTS:
            lost.append(envelope)
            return []
        return [envelope]

    broken = run_bins(make_machines(host_data(codes), guest_data(labels)), tamper=lose)
    assert len(lost) == 1
    assert not broken.results
    assert broken.ended is None
    once, again = (count_labels(host_data(codes), guest_data(labels)) for _ in range(2))
    assert again.results[Role.GUEST].merged == once.results[Role.GUEST].merged


def _changed(envelope: Envelope, **fields: Any) -> Envelope:
    return replace(envelope, message=replace(envelope.message, **fields))


def _with_other_sizes(sender: Role, envelope: Envelope) -> list[Envelope]:
    if isinstance(envelope.message, BinSizes):
        small = FineBins((5, 695), True), *envelope.message.columns[1:]
        return [_changed(envelope, columns=small)]
    return [envelope]


def _with_other_counts(sender: Role, envelope: Envelope) -> list[Envelope]:
    message = envelope.message
    if isinstance(message, ElementPiece) and message.kind is Kind.COUNTS and sender is Role.HOST:
        return [_changed(envelope, elements=message.elements + np.uint64(1 << 53))]
    return [envelope]


def _with_other_pieces(sender: Role, envelope: Envelope) -> list[Envelope]:
    message = envelope.message
    if isinstance(message, ElementPiece) and message.kind is Kind.MASKED_COLUMNS:
        return [_changed(envelope, elements=message.elements[:-8])]
    return [envelope]


def _with_other_columns(sender: Role, envelope: Envelope) -> list[Envelope]:
    return [_changed(envelope, n_columns=0) if isinstance(envelope.message, IdProof) else envelope]


def _with_other_groups(sender: Role, envelope: Envelope) -> list[Envelope]:
    if isinstance(envelope.message, MergedBins):
        return [_changed(envelope, columns=(MergedColumn((0,), (3,)),))]
    return [envelope]


@pytest.mark.parametrize(
    ("tamper", "error", "text"),
    [
        (_with_other_sizes, ProtocolError, "at least 10 rows in each bin"),
        (_with_other_counts, DataError, "contradict the sizes"),
        (_with_other_pieces, ProtocolError, "not the next ones"),
        (_with_other_columns, ProtocolError, "0 fine bins"),
        (_with_other_groups, ProtocolError, "do not fit the host's fine bins"),
    ],
)
def test_what_does_not_fit_is_refused(tamper: object, error: type[Exception], text: str) -> None:
    codes, labels = rows()
    with pytest.raises(error, match=text):
        run_bins(make_machines(host_data(codes), guest_data(labels)), tamper=tamper)  # type: ignore[arg-type]


@pytest.mark.parametrize("role", [*Role])
def test_other_messages_are_refused(role: Role) -> None:
    codes, labels = rows()
    machines = make_machines(host_data(codes), guest_data(labels))
    sender = Role.GUEST if role is Role.HOST else Role.HOST
    with pytest.raises(ProtocolError, match="does not take a RowsDone"):
        list(machines[role].handle(sender, RowsDone(SESSION, 1)))
    counts = ElementPiece(SESSION, Kind.COUNTS, 0, 8, 8, np.zeros(8, np.uint64))
    with pytest.raises(ProtocolError):
        list(machines[role].handle(sender, counts))


def test_counts_of_other_row_numbers_are_refused() -> None:
    codes, labels = rows()
    with pytest.raises(DataError, match="both must hold the same IDs"):
        count_labels(host_data(codes), guest_data(labels[:-1]))
