"""Whole sessions on shares in which every random number is known to the test, and can be chosen by it.

A session runs on the real machines, with kernels in numpy. Its streams are those of AES plus a table of differences,
which are zero at first. So a test can ask: are there other values of the numbers that a party does not know, with which
it receives the same bytes from other tables? `substitute` finds them: each element that travels is a value plus or
minus one number of one stream, so the difference of two runs is added to that number, message by message.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, is_dataclass, replace
from hashlib import shake_256
from threading import get_ident
from typing import Any

import numpy as np
import pytest

from tests.support.three_machines import (
    REAL,
    Outcome,
    Tables,
    Tamper,
    Workshop,
    deliver,
    make_machines,
    run_machines,
)
from trilateral.common.base.arrays import ElementVector
from trilateral.common.base.roles import PARTIES, Role
from trilateral.common.config.job import JobConfig
from trilateral.common.paillier.keys import PrivateKey
from trilateral.common.protocol.batches import Batches
from trilateral.common.protocol.messages import (
    BeginRound,
    ElementPiece,
    FinishJob,
    HoldoutScores,
    IdChallenge,
    IdProof,
    Kind,
    Message,
    OpenJob,
    Ready,
    RoundKey,
    RoundTimedOut,
    WeightShares,
)
from trilateral.common.protocol.party import PartyMachine
from trilateral.common.protocol.shares import arithmetic, attempts, information
from trilateral.common.protocol.shares.information import InformationPlan, InformationStep
from trilateral.common.protocol.shares.rows import RowPlan
from trilateral.common.protocol.shares.session import SESSION, StreamKeys
from trilateral.common.shares import kernels, reference, ring, stream
from trilateral.common.shares.format import Format
from trilateral.common.shares.information import SlopeFormat
from trilateral.common.shares.keys import SEED_BYTES, Purpose
from trilateral.coordinator.machine import CoordinatorMachine
from trilateral.coordinator.shares import points
from trilateral.coordinator.shares.computation import SharesOffer

Indices = np.ndarray[Any, np.dtype[np.int64]]
Place = tuple[bytes, int]
"""A stream: its key and its purpose. Numbers that the coordinator draws from the operating system: b"", number of the
draw."""

SLOPE_MASKS = {
    Kind.MASKED_SLOPES: (0, 2),
    Kind.ROUNDED_SLOPES: (1, 3),
    Kind.UNWEIGHTED_SLOPES: (4, 5),
    Kind.UNWEIGHTED_RESIDUAL: (6,),
}
"""Which columns of the stream of `Purpose.SLOPES` mask a kind of piece."""


@dataclass
class CutShare:
    """One party's share of some sums before it left."""

    share: ElementVector
    bits: int


@dataclass
class Randomness:
    """The source of all random numbers of a session."""

    seed: int | None
    """Of everything that processes draw from the operating system; None to draw it from there."""
    unmasked: frozenset[Purpose] = frozenset()
    """Purposes whose numbers are all 0, so that they mask nothing."""
    differences: dict[Place, ElementVector] = field(default_factory=dict)
    alone: StreamKeys = field(default_factory=StreamKeys.alone)
    """Keys of the coordinator's own streams."""
    n_drawn: int = 0
    n_shares: int = 0
    cuts: dict[tuple[Role, RoundKey], list[CutShare]] = field(default_factory=dict)

    def start(self) -> None:
        """Begin a session: the same as the last one, if there is a seed."""
        self.n_drawn = self.n_shares = 0
        self.cuts.clear()
        self.alone = StreamKeys(self.draw(SEED_BYTES))

    def draw(self, n_bytes: int) -> bytes:
        self.n_drawn += 1
        return self._bytes(f"draw {self.n_drawn}", n_bytes)

    def _bytes(self, what: str, n_bytes: int) -> bytes:
        if self.seed is None:
            return os.urandom(n_bytes)
        return shake_256(f"{self.seed} {what}".encode()).digest(n_bytes)

    def mask_of_shares(self, n: int) -> ElementVector:
        """The coordinator's mask of a vector of weights, which is the host's share."""
        self.n_shares += 1
        drawn = self._bytes(f"share {self.n_shares}", 8 * n)
        return np.frombuffer(drawn, np.uint64) + self.difference((b"", self.n_shares), n)

    def difference(self, place: Place, n: int) -> ElementVector:
        table = self.differences.get(place, np.zeros(0, np.uint64))
        if len(table) < n:
            table = np.concatenate([table, np.zeros(n - len(table), np.uint64)])
            self.differences[place] = table
        return table[:n]

    def change(self, place: Place, indices: Indices, by: ElementVector) -> None:
        self.difference(place, int(indices.max()) + 1)
        self.differences[place][indices] += by

    def changed(self) -> set[Place]:
        return {place for place, table in self.differences.items() if table.any()}


class _ToNearest:
    """Rounds columns to nearest: the same integers in every run."""

    def random(self, shape: tuple[int, ...]) -> np.ndarray[Any, np.dtype[np.float64]]:
        return np.full(shape, 0.5)


@contextmanager
def sources(randomness: Randomness) -> Iterator[None]:
    """Let all machines that run in here take their random numbers from one source."""
    make_generator, aes = np.random.default_rng, stream.elements

    def elements(key: bytes, purpose: Purpose, first_row: int, n_rows: int, n_columns: int) -> ElementVector:
        first, end = first_row * n_columns, (first_row + n_rows) * n_columns
        if purpose in randomness.unmasked:
            return np.zeros(end - first, np.uint64)
        return aes(key, purpose, first_row, n_rows, n_columns) + randomness.difference((key, int(purpose)), end)[first:]

    def share(values: ElementVector) -> Mapping[Role, ElementVector]:
        mask = randomness.mask_of_shares(len(values))
        return {Role.HOST: mask, Role.GUEST: values - mask}

    def generator(seed: Any = None) -> Any:
        return _ToNearest() if seed is None else make_generator(seed)

    with pytest.MonkeyPatch.context() as patch:
        for name in ("mask", "score_part", "deal", "residual", "add_products", "add_mask_products"):
            patch.setattr(kernels, name, getattr(reference, name))
        patch.setattr(kernels, "stream", elements)
        patch.setattr(stream, "elements", elements)
        patch.setattr(points, "_share", share)
        patch.setattr(StreamKeys, "alone", classmethod(lambda cls: randomness.alone))
        for module in ("common.protocol.shares.session.secrets", "guest_party.machine", "host_party.machine"):
            patch.setattr(f"trilateral.{module}.token_bytes", randomness.draw)
        patch.setattr(np.random, "default_rng", generator)
        keep_cuts(randomness, patch)
        yield


def keep_cuts(randomness: Randomness, patch: pytest.MonkeyPatch) -> None:
    """Keep each party's shares of sums as they are before they leave. Parties may run in threads of their own."""
    cut, send_sums, send_information = ring.cut_share, arithmetic.SharesArithmetic._sums, InformationStep._send_sums
    now: dict[int, list[CutShare]] = {}

    def cut_share(share: ElementVector, mask: ElementVector, bits: int, *, subtract: bool) -> ElementVector:
        now[get_ident()].append(CutShare(share.copy(), bits))
        return cut(share, mask, bits, subtract=subtract)

    def sums(self: arithmetic.SharesArithmetic, attempt: attempts.Attempt) -> Any:
        randomness.cuts[self.role, attempt.asked.key] = now[get_ident()] = []
        return send_sums(self, attempt)

    def information_sums(self: InformationStep) -> Any:
        randomness.cuts[self._work.role, self._key] = now[get_ident()] = []
        return send_information(self)

    for module in (arithmetic, information):
        patch.setattr(module, "cut_share", cut_share)
    patch.setattr(arithmetic.SharesArithmetic, "_sums", sums)
    patch.setattr(InformationStep, "_send_sums", information_sums)


@dataclass(frozen=True)
class Masked:
    """Elements of a message that are values plus or minus numbers of one stream."""

    place: Place
    indices: Indices
    elements: ElementVector
    sign: int
    """1 if the numbers were added, -1 if they were subtracted."""

    @property
    def flat(self) -> tuple[Indices, ElementVector]:
        return self.indices.ravel(), np.ascontiguousarray(self.elements).ravel()


@dataclass
class Transcript:
    """What travelled in a session, and the keys that explain it."""

    outcome: Outcome
    randomness: Randomness

    def __post_init__(self) -> None:
        traffic = [message for _, _, message in self.outcome.traffic]
        offers = {each.party: each.seed for each in traffic if isinstance(each, OpenJob)}
        ready = {
            sender: each
            for sender, _, each in self.outcome.traffic
            if isinstance(each, Ready) and each.shares is not None
        }
        (challenge,) = [each for each in traffic if isinstance(each, IdChallenge)]
        (proof,) = [each for each in traffic if isinstance(each, IdProof)]
        self.dealer = {}
        for party in PARTIES:
            shares = ready[party].shares
            assert shares is not None
            self.dealer[party] = StreamKeys.agreed(offers[party], shares.seed)
        self.parties = StreamKeys.agreed(challenge.seed, proof.seed)
        self.n_columns = {party: ready[party].n_columns for party in PARTIES}
        self.n_all = sum(self.n_columns.values())
        self.weighted = challenge.weight_bits is not None
        (offer,) = {each.job.name: each.job for each in traffic if isinstance(each, OpenJob)}.values()
        n_train, self.n_models = ready[Role.HOST].n_train, offer.n_models
        self.fmt = Format.of(n_train, offer.max_score, challenge.weight_bits)
        plan = RowPlan.of(Batches.of(offer, n_train), 0)
        self.information = InformationPlan.of(
            SlopeFormat.of(self.fmt, n_train, 0), plan, self.n_columns[Role.HOST], self.n_columns[Role.GUEST]
        )
        self.begun = {each.key: each for each in traffic if isinstance(each, BeginRound)}
        self.draws = self._draws(traffic)

    def _draws(self, traffic: list[Message]) -> dict[tuple[RoundKey | None, str], int]:
        """The number of the coordinator's draw for each vector of weights; None: the final ones."""
        draws: dict[tuple[RoundKey | None, str], int] = {}
        for key, begin in self.begun.items():
            assert begin.shares is not None
            for name in ("weights", "holdout"):
                if getattr(begin.shares, name) is not None:
                    for scale in ("score", "loss"):
                        draws[key, f"{name} {scale}"] = len(draws) + 1
        draws[None, "result"] = len(draws) + 1
        return draws

    def dropped(self, sender: Role, key: RoundKey) -> ElementVector:
        """How many low bits of each of its sums a party dropped."""
        return np.concatenate(
            [np.full(len(cut.share), cut.bits, np.uint64) for cut in self.randomness.cuts[sender, key]]
        )

    def view(self, role: Role) -> list[tuple[Role, Message]]:
        """All messages that a role receives from another, in their order."""
        return [
            (sender, message)
            for sender, to, message in self.outcome.traffic
            if to is role and sender is not role and not isinstance(message, RoundTimedOut)
        ]

    def masked(self, sender: Role, to: Role, message: Message) -> Iterator[Masked]:
        """Say which number of which stream masks which element of a message."""
        match message:
            case ElementPiece(kind=Kind.WEIGHTS | Kind.SEPARATION):
                return  # Of the result.
            case ElementPiece():
                yield from self._of_piece(sender, to, message)
            case BeginRound() if message.shares is not None:
                for number, name in enumerate(("weights", "holdout")):
                    weights: WeightShares | None = getattr(message.shares, name)
                    if weights is not None:
                        yield self._opened(to, message.key, number, weights.opened)
                        for scale in ("score", "loss"):
                            draw = self.draws[message.key, f"{name} {scale}"]
                            yield self._drawn(to, draw, getattr(weights, scale))
            case FinishJob() if message.share is not None:
                yield self._drawn(to, self.draws[None, "result"], message.share)
            case _:
                pass

    def _opened(self, to: Role, key: RoundKey, number: int, opened: ElementVector) -> Masked:
        first = number * self.n_all + (self.n_columns[Role.HOST] if to is Role.GUEST else 0)
        indices = first + np.arange(len(opened))
        return Masked((self.randomness.alone.of(key), int(Purpose.SHARES)), indices, opened, -1)

    @staticmethod
    def _drawn(to: Role, draw: int, elements: ElementVector) -> Masked:
        return Masked((b"", draw), np.arange(len(elements)), elements, 1 if to is Role.HOST else -1)

    def _of_piece(self, sender: Role, to: Role, piece: ElementPiece) -> Iterator[Masked]:
        if piece.kind is Kind.SUMS:
            yield self._of_sums(sender, piece)
            return
        is_dealt = sender is Role.COORDINATOR
        dealer = self.dealer[PARTIES[1 - PARTIES.index(to)] if is_dealt else sender].of(piece.key)
        n_guest, weighted = self.n_columns[Role.GUEST], self.weighted
        parts: list[tuple[Purpose, int, int, int]] = []  # columns of the stream, its first in the message, how many
        match piece.kind, sender:
            case Kind.MASKED_COLUMNS, Role.HOST:
                n_host = self.n_columns[Role.HOST]
                parts = [(Purpose.COLUMNS, n_host, 0, n_host)]
            case Kind.MASKED_COLUMNS, _:
                parts = [(Purpose.COLUMNS, n_guest, 0, n_guest), (Purpose.LABELS, self.n_models, 0, self.n_models)]
                if weighted:
                    parts += [(Purpose.WEIGHTS, 1, 0, 1), (Purpose.WEIGHTED, n_guest, 0, n_guest)]
            case Kind.DEALT, _:
                n = self.fmt.n_odd if to is Role.HOST else self.fmt.n_even
                parts = [(Purpose.DEALT, n, 0, n)]
            case Kind.MASKED_SCORES, _:
                parts = [(Purpose.SCORES, 1, 0, 1)]
            case Kind.MASKED_RESIDUAL, _ if len(piece.elements):
                width = 1 + (weighted and sender is Role.HOST)
                n = len(piece.elements) // piece.n_rows
                parts = [(Purpose.OPENED, width, width - n, n)]
            case ((Kind.DEALT_SLOPES | Kind.SLOPE_COLUMNS), _):
                # Their elements have the order of the numbers, whatever the rows.
                first = piece.offset * len(piece.elements) // piece.n_rows
                purpose = Purpose.DEALT_SLOPES if is_dealt else Purpose.SLOPE_COLUMNS
                numbers = first + np.arange(len(piece.elements))
                yield Masked((dealer, int(purpose)), numbers, piece.elements, -1)
                return
            case Kind.FINE_COLUMNS, _:
                n = self.n_columns[sender]
                tables = np.split(piece.elements, len(piece.elements) // (n * piece.n_rows))
                for purpose, table in zip((Purpose.COLUMNS, Purpose.INFORMATION_COLUMNS), tables, strict=False):
                    yield from self._of_rows(replace(piece, elements=table), dealer, [(purpose, n, 0, n)])
                return
            case kind, _ if kind in SLOPE_MASKS:
                width = self.information.slopes.n_masks(sender)
                parts = [(Purpose.SLOPES, width, column, 1) for column in SLOPE_MASKS[kind]]
        yield from self._of_rows(piece, dealer, parts)

    def _of_rows(self, piece: ElementPiece, key: bytes, parts: list[tuple[Purpose, int, int, int]]) -> Iterator[Masked]:
        total = sum(n for _, _, _, n in parts)
        elements = piece.elements.reshape(piece.n_rows // 8, total, 8) if total else piece.elements
        assert total or not len(piece.elements), f"{piece.kind} has elements that no stream masks"
        at = 0
        for purpose, width, first, n in parts:
            numbers = np.arange(piece.offset * width, (piece.offset + piece.n_rows) * width).reshape(-1, width, 8)
            sign = 1 if piece.kind in {Kind.MASKED_SCORES, Kind.MASKED_SLOPES} else -1
            yield Masked((key, int(purpose)), numbers[:, first : first + n], elements[:, at : at + n], sign)
            at += n

    def _of_sums(self, sender: Role, piece: ElementPiece) -> Masked:
        numbers = piece.offset + np.arange(len(piece.elements))
        if piece.key != SESSION:
            place = self.parties.of(piece.key), int(Purpose.SUMS)
            return Masked(place, numbers, piece.elements, 1 if sender is Role.HOST else -1)
        vector, column = np.divmod(numbers, self.n_all)
        width = 2 * self.n_all
        column = column + (self.n_all if sender is Role.GUEST else 0)
        indices = (vector // 8 * width + column) * 8 + vector % 8
        return Masked((self.parties.session, int(Purpose.LINEAR)), indices, piece.elements, 1)


@contextmanager
def watching(randomness: Randomness) -> Iterator[list[tuple[Role, Role, Message]]]:
    """Note all messages that machines handle in here, whatever runs them, with their own random numbers."""
    traffic: list[tuple[Role, Role, Message]] = []

    def noting(handle: Any, role: Role | None = None) -> Any:
        def call(self: Any, sender: Role, message: Message) -> Any:
            traffic.append((sender, role or self.role, message))
            return handle(self, sender, message)

        return call

    offer = SharesOffer.to

    def to(self: SharesOffer, party: Role) -> OpenJob:
        message = offer(self, party)
        traffic.append((Role.COORDINATOR, party, message))
        return message

    with pytest.MonkeyPatch.context() as patch:
        keep_cuts(randomness, patch)
        patch.setattr(SharesOffer, "to", to)
        patch.setattr(StreamKeys, "alone", classmethod(lambda cls: randomness.alone))
        patch.setattr(PartyMachine, "handle", noting(PartyMachine.handle))
        patch.setattr(CoordinatorMachine, "handle", noting(CoordinatorMachine.handle, Role.COORDINATOR))
        yield traffic


MakeTamper = Callable[[], Tamper]


def run_session(
    job: JobConfig,
    tables: Tables,
    private_key: PrivateKey,
    randomness: Randomness,
    make_tamper: MakeTamper = lambda: deliver,
    workshop: Workshop = REAL,
) -> Transcript:
    """Run a session whose random numbers come from one source."""
    randomness.start()
    with sources(randomness):
        outcome = run_machines(make_machines(job, tables, private_key, workshop), tamper=make_tamper())
    return Transcript(outcome, randomness)


def substitute(
    recorded: Transcript, role: Role, run: Callable[[Randomness], Transcript], *, max_runs: int = 100
) -> Transcript:
    """Find numbers for the streams that a role does not know, with which it receives the same bytes again.

    Args:
        recorded: a session.
        role: whose view it is.
        run: runs a session on other tables.
        max_runs: each run carries the equality a message further at least.

    Returns:
        The session on the other tables.
    """
    randomness = Randomness(recorded.randomness.seed, recorded.randomness.unmasked)
    for _ in range(max_runs):
        found = run(randomness)
        solve = _solve_sums if role is Role.COORDINATOR else _solve_messages
        if not solve(recorded, found, role):
            return found
    raise AssertionError(f"{max_runs} runs do not make the messages to the {role} the same")


def _solve_messages(recorded: Transcript, found: Transcript, role: Role) -> bool:
    """Add the difference of each element to the number that masks it; say whether there was any."""
    changes: dict[tuple[Place, int], tuple[Indices, ElementVector]] = {}  # What is dealt again has the same numbers.
    for (sender, old), (_, new) in zip(recorded.view(role), found.view(role), strict=True):
        assert type(old) is type(new)
        for one, other in zip(recorded.masked(sender, role, old), found.masked(sender, role, new), strict=True):
            assert one.place == other.place
            (indices, before), (_, after) = one.flat, other.flat
            if (difference := before - after).any():
                by = difference if one.sign > 0 else np.negative(difference)
                changes[one.place, int(indices[0])] = indices, by
    for (place, _), (indices, by) in changes.items():
        found.randomness.change(place, indices, by)
    return bool(changes)


def _solve_sums(recorded: Transcript, found: Transcript, role: Role) -> bool:
    """The same for the coordinator: any low bits will do that give both cut shares as they were."""
    changes = []
    pairs = list(zip(recorded.view(role), found.view(role), strict=True))
    for (sender, old), (_, new) in pairs:
        assert type(old) is type(new)
        if isinstance(old, ElementPiece) and isinstance(new, ElementPiece) and old.key == SESSION:
            (one,), (other,) = recorded.masked(sender, role, old), found.masked(sender, role, new)
            changes.append((one.place, one.flat[0], one.flat[1] - other.flat[1]))
    if any(by.any() for _, _, by in changes):
        for place, indices, by in changes:
            found.randomness.change(place, indices, by)
        return True
    sums: dict[RoundKey, dict[Role, tuple[ElementPiece, ElementPiece]]] = {}
    for (sender, old), (_, new) in pairs:
        if isinstance(old, ElementPiece) and isinstance(new, ElementPiece) and old.key != SESSION:
            sums.setdefault(old.key, {})[sender] = old, new
    for key, both in sums.items():
        if all(np.array_equal(old.elements, new.elements) for old, new in both.values()):
            continue
        if len(both) < len(PARTIES):  # The other party's sums were lost: any mask will do.
            ((sender, (old, new)),) = both.items()
            (one,), (other,) = recorded.masked(sender, role, old), found.masked(sender, role, new)
            bits = np.concatenate(
                [np.full(len(c.share), c.bits, np.uint64) for c in found.randomness.cuts[sender, key]]
            )
            by = (one.flat[1] - other.flat[1]) << bits
            found.randomness.change(one.place, one.flat[0], by if one.sign > 0 else np.negative(by))
            return True
        _choose_mask(found, key, {party: old.elements for party, (old, _) in both.items()})
        return True
    return False


def _choose_mask(found: Transcript, key: RoundKey, wanted: Mapping[Role, ElementVector]) -> None:
    """Choose n so that the host's share plus n and the guest's share minus n are cut to what is wanted.

    With p_1 + n = a 2^q + low, the guest's p_2 - n is p_1 + p_2 - a 2^q - low, which must be b 2^q and less than 2^q
    more. So `low` can be chosen if p_1 + p_2 is within [a + b, a + b + 2) 2^q: the coordinator's view fixes the sum no
    further.
    """
    host, guest = (found.randomness.cuts[party, key] for party in PARTIES)
    masks, at = [], 0
    for p_1, p_2 in zip(host, guest, strict=True):
        q = p_1.bits
        for x_1, x_2 in zip(p_1.share, p_2.share, strict=True):
            a, b = int(wanted[Role.HOST][at]), int(wanted[Role.GUEST][at])
            excess = (int(x_1) + int(x_2) - ((a + b) << q)) % 2**64
            assert excess < 2 ** (q + 1), "the sums are not equal after rounding"
            low = max(0, excess - 2**q + 1)
            masks.append(((a << q) + low - int(x_1)) % 2**64)
            at += 1
    place = found.parties.of(key), int(Purpose.SUMS)
    n = len(masks)
    now = stream.elements(place[0], Purpose.SUMS, 0, -(-n // 16) * 16, 1)[:n] + found.randomness.difference(place, n)
    found.randomness.change(place, np.arange(n), np.array(masks, np.uint64) - now)


def image(message: Any, role: Role) -> Any:
    """A message as nested tuples and bytes, without what belongs to the result of the training."""
    if isinstance(message, ElementPiece) and message.kind in {Kind.WEIGHTS, Kind.SEPARATION}:
        return message.kind, message.key, message.total
    if isinstance(message, HoldoutScores):
        return "hold-out scores", message.key, message.offset, message.total
    if isinstance(message, FinishJob):
        share = None if message.share is None else message.share.tobytes()
        return "end", message.round, message.epochs, message.reason, share
    return _image(message)


def _image(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    if is_dataclass(value) and not isinstance(value, type):
        return type(value).__name__, *(_image(getattr(value, each.name)) for each in fields(value))
    return value
