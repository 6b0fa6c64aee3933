"""The kernel gives the bits of numpy, at every level of the processor; it refuses sizes that do not match."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from secrets import token_bytes
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from trilateral.common.base.roles import PARTIES, Role
from trilateral.common.shares import path, reference
from trilateral.common.shares.format import WAVE_BITS, Format
from trilateral.common.shares.information import SlopeFormat
from trilateral.common.shares.keys import Purpose
from trilateral.common.shares.native import _kernel, operations
from trilateral.common.shares.reference import DealerKeys, DealerSums, Weights

Elements = NDArray[np.uint64]

LEVELS = range(1, _kernel.level + 1)
EDGES = [
    (part << 62) + (angle << 33) + (low << 17) + near
    for part, angle, low, near in product(range(4), (0, 1, 16384, 65535), (0, 1, 65535), (-1, 0, 1))
]
"""Ends of the ranges of a score, of both halves of its angle, and of what is cut."""


@pytest.fixture(params=LEVELS, ids=lambda level: {1: "avx2", 2: "avx512"}[level])
def level(request: pytest.FixtureRequest) -> Iterator[int]:
    before = path.shares_level()
    path.use_level(request.param)
    yield request.param
    path.use_level(before)


def elements(n: int, seed: int = 0) -> Elements:
    """Random elements, the first of them edges."""
    drawn = np.random.default_rng(seed).integers(0, 2**64, n, dtype=np.uint64)
    edges = np.array([edge % 2**64 for edge in EDGES], np.uint64)[:n]
    drawn[: len(edges)] = edges
    return drawn


def integers(n: int) -> NDArray[np.int32]:
    drawn = np.random.default_rng(1).integers(-(2**31), 2**31, n).astype(np.int32)
    drawn[:1], drawn[-1:] = -(2**31), 2**31 - 1
    return drawn


def keys() -> DealerKeys:
    return DealerKeys(*(token_bytes(16) for _ in range(4)))


def same(one: Elements, two: Elements) -> None:
    assert one.dtype == two.dtype
    np.testing.assert_array_equal(one, two)


FORMATS = [
    Format.of(n_rows, max_score, weight_bits)
    for n_rows, max_score, weight_bits in [
        *product((100, 20_000, 10**6, 10**8), (8, 12, 24), (None,)),
        *product((100, 10**6), (8, 12, 24), (0, 6)),
        (10**7, 12, 4),
    ]
]


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda fmt: f"{fmt.n_terms}-{fmt.f_d}-{fmt.f_v}-{fmt.weighted:d}")
@pytest.mark.parametrize("first_row", [0, 8, 2**40])
def test_all_values_of_a_round_are_the_same(level: int, fmt: Format, first_row: int) -> None:
    n_rows, n_host, n_guest, k = 160, 3, 2, keys()
    masks = elements(n_host), elements(n_guest)
    by_numpy, by_kernel = (DealerSums.zeros(n_host, n_guest) for _ in range(2))
    expected = reference.deal(fmt, k, masks, first_row, n_rows, by_numpy)
    dealt = operations.deal(fmt, k, masks, first_row, n_rows, by_kernel)
    for one, two in zip(expected, dealt, strict=True):
        same(one, two)
    for one, two in (
        (by_numpy.host, by_kernel.host),
        (by_numpy.guest, by_kernel.guest),
        (by_numpy.loss, by_kernel.loss),
    ):
        same(one, two)
    for one, two in zip(expected, operations.deal(fmt, k, masks, first_row, n_rows, None), strict=True):
        same(one, two)
    z = elements(n_rows)
    for role, gradient in product(PARTIES, (True, False)):
        own, key = expected[role is Role.GUEST], k.host_round if role is Role.HOST else k.guest_round
        a = reference.residual(fmt, role, key, own, z, first_row, gradient=gradient)
        b = operations.residual(fmt, role, key, own, z, first_row, gradient=gradient)
        same(a.d, b.d)
        same(a.loss, b.loss)
        same(a.v, b.v)
        assert a.digest == b.digest


@pytest.mark.parametrize("n_rows", [16, 64, 80, 8192])
@pytest.mark.parametrize(("n_own", "n_other"), [(1, 1), (7, 10), (64, 65), (130, 0), (0, 3)])
def test_all_products_with_tables_are_the_same(level: int, n_rows: int, n_own: int, n_other: int) -> None:
    columns, other, k, row = integers(n_rows * n_own), elements(n_rows * n_other), keys(), 48
    weights = Weights(elements(n_own, 2), elements(n_own, 3), elements(n_other, 4))
    for offset in (True, False):
        parts = [
            module.score_part(columns, other, weights, (k.host_session, k.host_round), row, offset=offset)
            for module in (reference, operations)
        ]
        same(parts[0], parts[1])
    d = elements(n_rows, 5)
    tables: list[tuple[reference.Columns, int]] = [(columns, n_own), (other, n_other)]
    for table, count in tables:
        same(
            reference.mask(table, k.host_session, Purpose.COLUMNS, row, count),
            operations.mask(table, k.host_session, Purpose.COLUMNS, row, count),
        )
        same(
            reference.elements(k.host_session, Purpose.COLUMNS, row, n_rows, count),
            operations.elements(k.host_session, Purpose.COLUMNS, row, n_rows, count),
        )
        one, two = elements(count, 6), elements(count, 6)
        for module, sums in ((reference, one), (operations, two)):
            module.add_products(table, d, sums)
            module.add_mask_products(k.host_session, Purpose.COLUMNS, row, count, d, sums)
        same(one, two)
        many = elements(3 * n_rows, 7)
        sums_of_many = [elements(3 * count, 8).reshape(3, count) for _ in range(2)]
        for module, each in zip((reference, operations), sums_of_many, strict=True):
            module.add_products(table, many, each)
        same(*sums_of_many)
        same(reference.scale(table, d, count), operations.scale(table, d, count))


@given(st.lists(st.integers(0, 2**64 - 1), min_size=16, max_size=16), st.sampled_from(FORMATS), st.booleans())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_scores_give_the_same_residual(level: int, drawn: list[int], fmt: Format, gradient: bool) -> None:
    z, key = np.array(drawn, np.uint64), bytes(16)
    dealt = elements(16 * fmt.n_odd, 7)
    a = reference.residual(fmt, Role.HOST, key, dealt, z, 0, gradient=gradient)
    b = operations.residual(fmt, Role.HOST, key, dealt, z, 0, gradient=gradient)
    same(a.loss, b.loss)
    same(a.d, b.d)
    assert a.digest == b.digest


@pytest.mark.parametrize("weight_bits", [None, 0, 6])
@pytest.mark.parametrize("max_score", [8, 12, 24])
@pytest.mark.parametrize("n_rows", [16, 80, 160])
def test_the_waves_of_inference_are_the_same(level: int, n_rows: int, max_score: int, weight_bits: int | None) -> None:
    slopes = SlopeFormat.of(Format.of(20_000, max_score, weight_bits), 20_000, 3)
    K, values, n_values = slopes.n_terms, elements(n_rows), slopes.n_terms + 2
    streams = [elements(n_rows * n_values, 1), elements(n_rows * n_values, 2)]
    by_numpy, by_kernel = [each.copy() for each in streams], [each.copy() for each in streams]
    reference.deal_waves(values, K, WAVE_BITS - slopes.wave_bits, *by_numpy)
    operations.deal_waves(values, K, WAVE_BITS - slopes.wave_bits, *by_kernel)
    for expected, dealt, before in zip(by_numpy, by_kernel, streams, strict=True):
        same(expected, dealt)
        same(dealt[n_rows * K :], before[n_rows * K :])

    one, two = ([elements(n_rows, 3), elements(n_rows, 4), elements(n_rows, 5)] for _ in range(2))
    a = reference.add_waves(values, slopes.kernel_coef, *streams, *one)
    b = operations.add_waves(values, slopes.kernel_coef, *streams, *two)
    assert a == b
    for first, second in zip(one, two, strict=True):
        same(first, second)


def test_coefficients_of_more_than_31_bits_are_refused(level: int) -> None:
    call = calls()["add_waves"]
    call.arguments[4][1] = 2**31
    with pytest.raises(ValueError, match="add_waves"):
        call.function(level, *call.arguments)


@pytest.mark.parametrize(("name", "which"), [("deal_waves", 0), ("deal_waves", 1), ("add_waves", 7), ("add_waves", 8)])
def test_streams_without_all_waves_are_refused(level: int, name: str, which: int) -> None:
    call = calls()[name]
    call.arguments[which] = call.arguments[which][:-1]
    with pytest.raises(ValueError, match="sizes do not match"):
        call.function(level, *call.arguments)


def test_tables_may_begin_anywhere_in_memory(level: int) -> None:
    """As they do in a message."""
    table, key = elements(16 * 3), token_bytes(16)
    moved = np.frombuffer(b"x" + table.tobytes(), np.uint8)[1:].view(np.uint64)
    assert not moved.flags.aligned
    same(operations.mask(moved, key, Purpose.COLUMNS, 0, 3), operations.mask(table, key, Purpose.COLUMNS, 0, 3))


def test_a_digest_differs_if_one_score_differs(level: int) -> None:
    fmt, z = Format.of(1000, 12), elements(64)
    other = z.copy()
    other[37] ^= np.uint64(1)
    dealt = elements(64 * fmt.n_odd)
    digests = [operations.residual(fmt, Role.HOST, bytes(16), dealt, x, 0, gradient=True).digest for x in (z, other)]
    assert digests[0] != digests[1]


# --- sizes


@dataclass
class Call:
    """A call of the kernel that is right: its arguments after the level, and by number those that can be too short."""

    function: Callable[..., None]
    arguments: list[Any]
    buffers: tuple[int, ...]
    rows: tuple[int, ...]
    """Arguments that must be multiples of 8, or of 16, and not negative."""


def calls() -> dict[str, Call]:
    fmt, table, key = Format.of(1000, 12, 4), reference.wave_table(), bytes(16)
    n, a, b = 32, 3, 2

    def some(count: int) -> Elements:
        return np.zeros(count, np.uint64)

    numbers = fmt.kernel_numbers
    deal_out = [some(n * fmt.n_odd), some(n * fmt.n_even), some(a), some(b), some(1)]
    residual_out, dealt = [some(n), some(n), some(n), some(8)], some(n * fmt.n_odd)
    own, other = np.zeros(n * a, np.int32), some(n * b)
    return {
        "stream": Call(_kernel.stream, [some(n * a), key, 1, 0, a], (1,), (3,)),
        "mask": Call(_kernel.mask, [some(n * a), own, key, 1, 0, a], (0, 1, 2), (4,)),
        "score_part": Call(
            _kernel.score_part,
            [some(n), own, other, some(a), some(a), some(b), key, key, 0, True],
            (0, 1, 2, 3, 4, 5, 6, 7),
            (8,),
        ),
        "deal": Call(
            _kernel.deal,
            [*deal_out, numbers, table, 4 * key, some(a), some(b), 0, n, True],
            (0, 1, 2, 3, 4, 5, 6, 7, 8, 9),
            (10, 11),
        ),
        "residual": Call(
            _kernel.residual,
            [*residual_out, numbers, table, key, dealt, some(n), 0, True, True],
            (0, 1, 2, 3, 4, 5, 6, 7, 8),
            (9,),
        ),
        "add_products": Call(_kernel.add_products, [some(a), own, some(n), 1], (0, 1, 2), ()),
        "scale": Call(_kernel.scale, [some(n * a), own, some(n)], (0, 1, 2), ()),
        "add_mask_products": Call(_kernel.add_mask_products, [some(a), key, some(n), 1, 0], (1, 2), (4,)),
        "deal_waves": Call(_kernel.deal_waves, [some(n * a), some(n * a), some(n), table, a, 4], (2, 3), ()),
        "add_waves": Call(
            _kernel.add_waves,
            [
                *(some(n) for _ in range(3)),
                some(8),
                some(3 * a).view(np.int64),
                table,
                some(n),
                some(n * a),
                some(n * a),
            ],
            (0, 1, 2, 3, 5, 6),
            (),
        ),
    }


@pytest.mark.parametrize("name", calls())
def test_right_sizes_are_accepted(level: int, name: str) -> None:
    call = calls()[name]
    call.function(level, *call.arguments)


@pytest.mark.parametrize(("name", "which"), [(name, which) for name, call in calls().items() for which in call.buffers])
def test_a_buffer_of_the_wrong_size_is_refused(level: int, name: str, which: int) -> None:
    call = calls()[name]
    whole = call.arguments[which]
    room = bytearray(bytes(whole) + bytes(8))
    for wrong in (memoryview(room)[: len(room) - 9], memoryview(room)[: len(room) - 16], memoryview(room)):
        arguments = list(call.arguments)
        arguments[which] = wrong
        with pytest.raises(
            ValueError, match=r"sizes do not match|a key has 16 bytes|four keys|numbers of a format|the sums"
        ):
            call.function(level, *arguments)


@pytest.mark.parametrize(("name", "which"), [(name, which) for name, call in calls().items() for which in call.rows])
@pytest.mark.parametrize("wrong", [-16, 4, 2**62])
def test_rows_that_no_group_begins_with_are_refused(level: int, name: str, which: int, wrong: int) -> None:
    call = calls()[name]
    arguments = list(call.arguments)
    arguments[which] = wrong
    with pytest.raises(ValueError, match="sizes do not match"):
        call.function(level, *arguments)


@pytest.mark.parametrize("name", calls())
@pytest.mark.parametrize("wrong", [-1, 0, 3])
def test_a_level_that_the_processor_does_not_have_is_refused(name: str, wrong: int) -> None:
    call = calls()[name]
    with pytest.raises(ValueError, match="the processor does not have this level"):
        call.function(wrong, *call.arguments)


@pytest.mark.parametrize(
    ("which", "wrong"), [(0, 0), (0, 41), (1, 0), (1, 63), (2, 63), (3, 2), (4, -1), (20, 63), (36, 64), (52, 2**31)]
)
def test_numbers_that_no_format_has_are_refused(level: int, which: int, wrong: int) -> None:
    call = calls()["deal"]
    numbers = call.arguments[5].copy()
    numbers[which] = wrong
    call.arguments[5] = numbers
    with pytest.raises(ValueError, match="numbers of a format"):
        call.function(level, *call.arguments)


def test_sums_of_another_number_of_columns_are_refused(level: int) -> None:
    with pytest.raises(ValueError, match="a sum for each column"):
        operations.add_mask_products(bytes(16), Purpose.COLUMNS, 0, 3, elements(16), elements(2))
