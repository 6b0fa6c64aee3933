"""Every number that travels in a session on shares is uniform, and no number of a stream masks two values.

If a stream served twice, the difference of two messages would be a difference of two values: the last tests show what a
party reads from it.
"""

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from tests.attacks.test_shares_views import BATCHES, FOLDS, JOBS, WEIGHTED, WHOLE, LostSums, tables_of
from tests.support.share_views import Indices, Randomness, Transcript, run_session, watching
from tests.support.shares_rounds import rows_in_order
from tests.support.three_machines import Outcome
from tests.support.three_servers import DATASET, make_configs, serving, train_over_localhost, write_tables
from trilateral.common.base.arrays import ElementVector, FloatMatrix, FloatVector
from trilateral.common.base.roles import PARTIES, Role
from trilateral.common.config.job import JobConfig
from trilateral.common.paillier.keys import PrivateKey
from trilateral.common.pb.v1.jobs_pb2 import JOB_STATE_FINISHED
from trilateral.common.protocol.batches import Batches
from trilateral.common.protocol.messages import (
    SLOPE_KINDS,
    BeginRound,
    ElementPiece,
    JobEnded,
    Kind,
    Message,
    RoundKey,
    WeightShares,
)
from trilateral.common.protocol.shares.rows import RowPlan
from trilateral.common.protocol.shares.session import SESSION, StreamKeys
from trilateral.common.shares import stream
from trilateral.common.shares.format import SCORE_BITS
from trilateral.common.shares.keys import Purpose
from trilateral.common.shares.layout import untile
from trilateral.common.shares.ring import decode


class Use(NamedTuple):
    """A stream that masks something."""

    key: bytes
    purpose: int
    sender: Role | None
    """Of sums, which two parties mask by the same numbers in opposite directions; else None."""


def record(job: JobConfig, private_key: PrivateKey, *, weighted: bool, seed: int | None) -> Transcript:
    """A session with a lost message, so with two attempts at round 2; what was lost counts as sent."""
    tamper = LostSums()
    found = run_session(job, tables_of(job, weighted=weighted, seed=1), private_key, Randomness(seed), lambda: tamper)
    assert found.outcome.ended.loss is not None
    assert tamper.lost is not None
    found.outcome.traffic.append((Role.HOST, Role.COORDINATOR, tamper.lost))
    return found


def between_roles(transcript: Transcript) -> Iterator[tuple[Role, Role, Message]]:
    return (each for each in transcript.outcome.traffic if each[0] is not each[1])


def masked_values(transcript: Transcript) -> Iterator[tuple[Use, Indices, ElementVector]]:
    """Yield each use of a stream: which of its numbers, and the values that they mask."""
    for sender, to, message in between_roles(transcript):
        for masked in transcript.masked(sender, to, message):
            key, purpose = masked.place
            if not key:
                continue  # Drawn from the operating system for one vector.
            indices, elements = masked.flat
            if purpose == Purpose.SUMS:
                assert isinstance(message, ElementPiece)
                values = np.concatenate([cut.share for cut in transcript.randomness.cuts[sender, message.key]])
                yield Use(key, purpose, sender), indices, values
                continue
            first, end = int(indices.min()) // 16 * 16, -(-int(indices.max() + 1) // 16) * 16
            words = stream.elements(key, Purpose(purpose), first, end - first, 1)[indices - first]
            yield Use(key, purpose, None), indices, elements - words if masked.sign > 0 else elements + words


def numbers_with_two_values(*sessions: Transcript) -> int:
    """Count the values that a number of a stream masks although it has masked another."""
    found: dict[Use, list[tuple[Indices, ElementVector]]] = defaultdict(list)
    for transcript in sessions:
        for use, indices, values in masked_values(transcript):
            found[use].append((indices, values))
    conflicts = 0
    for parts in found.values():
        indices = np.concatenate([part[0] for part in parts])
        values = np.concatenate([part[1] for part in parts])
        order = np.lexsort((values, indices))
        same_number = np.diff(indices[order]) == 0
        conflicts += int((same_number & (values[order][1:] != values[order][:-1])).sum())
    return conflicts


@JOBS
@WEIGHTED
def test_no_number_of_a_stream_masks_two_values(job: JobConfig, weighted: bool, private_key: PrivateKey) -> None:
    sessions = [record(job, private_key, weighted=weighted, seed=None) for _ in range(2)]
    assert numbers_with_two_values(*sessions) == 0
    # Some rows were dealt for twice, and got the same bytes.
    dealt = [
        (to, message.key, message.offset)
        for _, to, message in sessions[0].outcome.traffic
        if isinstance(message, ElementPiece) and message.kind is Kind.DEALT
    ]
    assert len(dealt) > len(set(dealt)) or job in (BATCHES, FOLDS)


async def test_no_number_masks_two_values_between_three_processes(tmp_path: Path) -> None:
    """With the kernels and windows of a real job, and several blocks."""
    write_tables(tmp_path, n_rows=12_000)
    randomness = Randomness(None)
    job = WHOLE.model_copy(update={"dataset": DATASET, "evaluate_every": 1, "epochs": WHOLE.epochs + 1})
    with watching(randomness) as traffic:
        async with serving(make_configs(tmp_path)) as client:
            status = await train_over_localhost(client, job)
    assert status.state == JOB_STATE_FINISHED

    transcript = Transcript(Outcome(JobEnded("", None, 0), {}, [], traffic), randomness)
    n_elements = sum(len(each.elements) for _, _, each in traffic if isinstance(each, ElementPiece))
    assert n_elements > 12_000 * 4 * transcript.fmt.n_values
    assert numbers_with_two_values(transcript) == 0


@JOBS
@WEIGHTED
def test_a_mask_covers_every_number_that_travels(job: JobConfig, weighted: bool, private_key: PrivateKey) -> None:
    transcript = record(job, private_key, weighted=weighted, seed=3)
    kinds = set()
    for sender, to, message in between_roles(transcript):
        # Those two are for the receiver to read.
        if not isinstance(message, ElementPiece) or message.kind in {Kind.WEIGHTS, Kind.SEPARATION}:
            continue
        kinds.add(message.kind)
        masked = list(transcript.masked(sender, to, message))
        assert sum(len(each.flat[0]) for each in masked) == len(message.elements)
        assert len({(each.place, index) for each in masked for index in each.flat[0].tolist()}) == len(message.elements)
    expected = {Kind.MASKED_COLUMNS, Kind.DEALT, Kind.MASKED_SCORES, Kind.MASKED_RESIDUAL, Kind.SUMS}
    if job.inference:
        expected |= SLOPE_KINDS if weighted else SLOPE_KINDS - {Kind.UNWEIGHTED_SLOPES, Kind.UNWEIGHTED_RESIDUAL}
    assert kinds == expected


@pytest.mark.parametrize("kept", ["attempt", "round"])
def test_the_count_finds_keys_that_do_not_depend_on_the_round_or_the_attempt(
    kept: str, private_key: PrivateKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    derive = StreamKeys.of

    def of(self: StreamKeys, key: RoundKey) -> bytes:
        if key == SESSION:
            return derive(self, key)
        return derive(self, RoundKey(1, key.attempt) if kept == "attempt" else RoundKey(key.round, 1))

    monkeypatch.setattr(StreamKeys, "of", of)
    assert numbers_with_two_values(record(WHOLE, private_key, weighted=False, seed=3)) > 100


def test_the_count_finds_seeds_that_survive_a_session(private_key: PrivateKey) -> None:
    other = tables_of(WHOLE, weighted=False, seed=2)
    sessions = [record(WHOLE, private_key, weighted=False, seed=3)]
    sessions.append(run_session(WHOLE, other, private_key, Randomness(3)))
    assert numbers_with_two_values(*sessions) > 100


# --- uniformity

BYTES_LIMIT = 400.0
"""A chi-square with 255 degrees of freedom exceeds this once in 10^8 times."""


def byte_statistics(elements: ElementVector) -> FloatVector:
    """Chi-square of each of the 8 bytes of the elements, against all values alike."""
    table = elements.astype("<u8").view(np.uint8).reshape(-1, 8)
    counts = np.stack([np.bincount(table[:, place], minlength=256) for place in range(8)])
    expected = len(table) / 256
    statistics: FloatVector = np.square(counts - expected).sum(axis=1) / expected
    return statistics


def travelling(transcript: Transcript) -> dict[tuple[str, Role], ElementVector]:
    """All elements by their kind and receiver. What is cut is shifted back, under other random bits."""
    found: dict[tuple[str, Role], list[ElementVector]] = defaultdict(list)
    low = np.random.default_rng(0)
    for sender, to, message in between_roles(transcript):
        if isinstance(message, ElementPiece) and len(message.elements):
            elements = message.elements
            if message.kind is Kind.SUMS and message.key != SESSION:
                bits = transcript.dropped(sender, message.key)
                filler = low.integers(0, 2**64, len(bits), dtype=np.uint64) & ((np.uint64(1) << bits) - np.uint64(1))
                elements = elements << bits | filler
            found[message.kind.value, to].append(elements)
        if isinstance(message, BeginRound) and message.shares is not None:
            for weights in (message.shares.weights, message.shares.holdout):
                if weights is not None:
                    found["shares of weights", to] += [weights.score, weights.opened, weights.loss]
    return {kind: np.concatenate(parts) for kind, parts in found.items()}


@WEIGHTED
def test_everything_that_travels_is_uniform(weighted: bool, private_key: PrivateKey) -> None:
    job = BATCHES.model_copy(update={"epochs": 40, "evaluate_every": 1})
    elements = travelling(record(job, private_key, weighted=weighted, seed=5))
    assert {kind for kind, _ in elements} == {
        "masked_columns", "dealt", "masked_scores", "masked_residual", "sums", "weights", "shares of weights",
    }  # fmt: skip
    for (kind, to), each in elements.items():
        if len(each) > 1280:
            assert (byte_statistics(each) < BYTES_LIMIT).all(), (kind, to)
        ones = np.unpackbits(each.view(np.uint8).reshape(-1, 8), axis=1).mean(axis=0)
        assert (np.abs(ones - 0.5) < 3.2 / np.sqrt(len(each))).all(), (kind, to)


def test_the_statistics_tell_columns_without_masks_from_random_numbers(private_key: PrivateKey) -> None:
    job = BATCHES
    columns = np.asarray(tables_of(job, weighted=False, seed=1).host.block.columns)
    elements = np.rint(np.ldexp(columns, 12)).astype(np.int64).view(np.uint64).ravel()
    assert (byte_statistics(elements)[2:] > BYTES_LIMIT).all()


# --- sizes


def sizes(transcript: Transcript) -> list[tuple[Role, Role, str, list[int]]]:
    """What an observer sees of each message."""
    found = []
    for sender, to, message in between_roles(transcript):
        lengths = [len(each.flat[0]) for each in transcript.masked(sender, to, message)]
        found.append((sender, to, type(message).__name__, lengths))
    return found


@JOBS
@WEIGHTED
def test_sizes_and_order_of_messages_do_not_depend_on_values(
    job: JobConfig, weighted: bool, private_key: PrivateKey
) -> None:
    one, other = (
        run_session(job, tables_of(job, weighted=weighted, seed=seed), private_key, Randomness(None)) for seed in (1, 2)
    )
    assert sizes(one) == sizes(other)


# --- what a party reads if a stream serves twice


def shares_of(transcript: Transcript, receiver: Role, key: RoundKey) -> WeightShares:
    for _, to, each in transcript.outcome.traffic:
        if to is receiver and isinstance(each, BeginRound) and each.key == key and each.shares is not None:
            assert each.shares.weights is not None
            return each.shares.weights
    raise AssertionError(f"{key} did not begin")


def received(transcript: Transcript, sender: Role, kind: Kind, key: RoundKey) -> ElementVector:
    pieces = [
        each.elements
        for who, _, each in transcript.outcome.traffic
        if who is sender and isinstance(each, ElementPiece) and (each.kind, each.key) == (kind, key)
    ]
    return np.concatenate(pieces)


def score_differences(
    transcript: Transcript, host_columns: FloatMatrix, one: RoundKey, other: RoundKey
) -> tuple[FloatVector, FloatVector]:
    """Return what the guest takes for X (w - w') from its own messages of two rounds, and the true values.

    X are the host's columns and U = X - D their masks, w the host's weights and v the guest's. The two messages are

        z_1 - z_1' = X (w_1 - w_1') + U (w_2 - w_2' - a + a') + D_guest (v_1 - v_1') + s_1 - s_1'

    If both rounds have the same s_1, a and b, the guest knows all of it, except for X (w - w').
    """
    n_rows = len(host_columns)
    n_host, n_guest = (transcript.n_columns[party] for party in PARTIES)
    masked_host = untile(received(transcript, Role.HOST, Kind.MASKED_COLUMNS, SESSION), n_host)[:n_rows]
    masked_guest = untile(received(transcript, Role.GUEST, Kind.MASKED_COLUMNS, SESSION), n_guest + 1)
    masked_guest = masked_guest[:n_rows, :n_guest]
    guest = [shares_of(transcript, Role.GUEST, key) for key in (one, other)]
    scores = [received(transcript, Role.HOST, Kind.MASKED_SCORES, key)[:n_rows] for key in (one, other)]
    guess = scores[0] - scores[1]
    guess += masked_host @ (guest[0].score[:n_host] - guest[1].score[:n_host])
    guess -= masked_guest @ (guest[0].opened - guest[1].opened)

    host = [shares_of(transcript, Role.HOST, key) for key in (one, other)]
    points = [decode(a.score + b.score, transcript.fmt.f_w)[:n_host] for a, b in zip(host, guest, strict=True)]
    return decode(guess, SCORE_BITS), host_columns @ (points[0] - points[1])


@pytest.mark.parametrize("protected", [False, True])
def test_a_guest_reads_differences_of_the_hosts_scores_only_if_two_rounds_have_one_key(
    protected: bool, private_key: PrivateKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not protected:
        derive = StreamKeys.of
        monkeypatch.setattr(StreamKeys, "of", lambda self, key: derive(self, RoundKey(min(key.round, 1), key.attempt)))
    tables = tables_of(WHOLE, weighted=False, seed=1)
    columns = tables.host.block.columns
    transcript = run_session(WHOLE, tables, private_key, Randomness(3))
    rows = rows_in_order(RowPlan.of(Batches.of(WHOLE, len(columns)), 0))

    guess, true = score_differences(transcript, columns[rows], RoundKey(3, 1), RoundKey(4, 1))

    assert np.std(true) > 0.01
    assert np.allclose(guess, true, atol=2e-3) is not protected
    assert bool(abs(np.corrcoef(guess, true)[0, 1]) < 0.3) is protected
