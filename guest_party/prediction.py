"""The guest's side of a prediction: it scores its rows, asks the host for its part, and writes the sums to a file.

All of it is on disk in a folder of its own, so that memory is bounded whatever the number of rows.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from secrets import token_bytes
from typing import TypeVar

import numpy as np
import pyarrow as pa
from google.protobuf.message import Message

from trilateral.common.base.arrays import FloatVector
from trilateral.common.base.errors import ConfigError, DataError, PeerError, ProtocolError, TrilateralError
from trilateral.common.base.roles import Role
from trilateral.common.base.scratch import SCRATCH, scratch_folder
from trilateral.common.base.tasks import for_each
from trilateral.common.config.dataset import DatasetConfig
from trilateral.common.config.process import ProcessConfig
from trilateral.common.data.alignment.dealing import Dealing
from trilateral.common.data.alignment.guest_session import CommonShard
from trilateral.common.data.model.calibration import calibrate
from trilateral.common.data.model.model_file import PartyModel, check_half, load_model
from trilateral.common.data.model.scoring import score_table
from trilateral.common.data.model.spool import ScoredRows, ScoredShards
from trilateral.common.data.tables.id_form import rules_of
from trilateral.common.jobs.folder import JobFolder
from trilateral.common.jobs.policy import check_prediction
from trilateral.common.jobs.quota import IdQuota
from trilateral.common.pb.v1 import prediction_pb2
from trilateral.common.protocol.alignment import AlignmentProgress
from trilateral.common.protocol.ids import NONCE_BYTES, canonical_order, id_digest
from trilateral.common.rpc.channel import Peer
from trilateral.common.rpc.codec import MAX_TOTAL, PREDICTION_BYTES
from trilateral.guest_party.alignment import IN_FLIGHT, GuestAlignments
from trilateral.guest_party.score_file import check_suffix, write_scores
from trilateral.guest_party.stages import OnStage, Stage

Response = TypeVar("Response", bound=Message)

CLOSE_SECONDS = 5.0
"""For telling a host, which may be gone, that nothing more will come."""


@dataclass(frozen=True)
class Wanted:
    """What is to be predicted, and where to.

    Attributes:
        job: whose model.
        dataset: name of the table, in the configurations of both parties.
        out: file for the scores.
        missing: file for the IDs that the host does not hold.
        aligned: both tables hold the same IDs already.
    """

    job: str
    dataset: str
    out: Path
    missing: Path
    aligned: bool = False


@dataclass(frozen=True)
class Counts:
    """What came of it."""

    n_scored: int
    n_guest: int
    n_host: int
    warnings: tuple[str, ...] = ()
    """What the guest should look at in its own table."""


async def predict(config: ProcessConfig, host: Peer, wanted: Wanted, on_progress: OnStage = lambda _: None) -> Counts:
    """Score the rows of the guest's table that the host holds too, and write them down.

    Args:
        config: of the guest.
        host: the peer.
        wanted: what is to be predicted.
        on_progress: is told how far it is, from several threads.

    Raises:
        TrilateralError: it cannot be done; nothing is written then.
    """
    table = check_prediction(wanted.job, wanted.dataset, config.datasets, config.policy, Role.GUEST)
    _check_files(wanted, table)
    model = load_model(JobFolder(config.state, wanted.job).model)
    check_half(model, Role.GUEST, wanted.job, model.run_id)
    try:
        with scratch_folder(config.state) as folder:
            prediction = _Prediction(
                config, host, wanted, table=table, model=model, folder=folder, on_progress=on_progress
            )
            return await prediction.run()
    except OSError as error:
        raise ConfigError(f"state: {config.state / SCRATCH} cannot be written: {error.strerror}") from error


def _check_files(wanted: Wanted, table: DatasetConfig) -> None:
    check_suffix(wanted.out)
    check_suffix(wanted.missing)
    if len({path.resolve() for path in (wanted.out, wanted.missing, table.path)}) < 3:
        raise ConfigError(f"{wanted.out}: scores, missing IDs and the dataset {wanted.dataset} need a file each")


class _Prediction:
    """One prediction at the guest."""

    def __init__(
        self,
        config: ProcessConfig,
        host: Peer,
        wanted: Wanted,
        *,
        table: DatasetConfig,
        model: PartyModel,
        folder: Path,
        on_progress: OnStage,
    ) -> None:
        self._wanted = wanted
        self._table = table
        self._model = model
        self._folder = folder
        self._on_progress = on_progress
        self._alignments = GuestAlignments(host, config.limits, IdQuota(config.state, config.policy.max_ids_a_day))
        self._rows = ScoredRows(folder, table.id)
        self._name = token_bytes(PREDICTION_BYTES)
        self._warnings: list[str] = []
        self._over = threading.Event()
        """Nobody waits for the table that is read in a thread any more."""

    async def run(self) -> Counts:
        """All of it, in order."""
        try:
            n_host = await self._read_both()
            shards, n_shards = await (self._prove(n_host) if self._wanted.aligned else self._intersect(n_host))
            totals = np.memmap(self._folder / "totals", np.float64, "w+", shape=(self._rows.n_ids,))
            await self._fetch(shards, n_shards, totals)
            n_scored = await self._alignments.compute(self._write, totals)
        finally:
            try:
                await self._close()
            finally:
                # A thread goes on when nobody waits for it any more, and would write to the folder while it is removed.
                await self._alignments.computed()
                self._rows.finish()
        return Counts(n_scored, self._rows.n_ids, n_host, tuple(self._warnings))

    # --- both tables are read at the same time

    async def _read_both(self) -> int:
        """Return how many rows the host has."""
        opening, reading = asyncio.create_task(self._open()), asyncio.create_task(self._read())
        try:
            done, _ = await asyncio.wait({opening, reading}, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            # The thread that reads ends with its piece, and the file that it writes to can be closed then.
            self._over.set()
            opening.cancel()
            await asyncio.gather(opening, reading, return_exceptions=True)
        for task in done:
            task.result()
        return opening.result()

    async def _open(self) -> int:
        request = prediction_pb2.OpenPredictionRequest(
            job=self._wanted.job,
            run_id=bytes.fromhex(self._model.run_id),
            prediction=self._name,
            model=self._model.shared_digest,
            dataset=self._wanted.dataset,
        )
        n_rows = (await self._call("OpenPrediction", request, prediction_pb2.OpenPredictionResponse)).n_rows
        if not 1 <= n_rows <= MAX_TOTAL:
            raise ProtocolError(f"the host says that its table has {n_rows} rows")
        return n_rows

    async def _read(self) -> None:
        def tell(n_rows: int) -> None:
            if self._over.is_set():
                raise PeerError("the prediction has ended")
            self._on_progress(Stage("reading", n_rows))

        self._warnings = await self._alignments.compute(score_table, self._model, self._table, self._rows, tell)

    # --- which rows are common

    async def _align(self, nonce: bytes) -> prediction_pb2.AlignPredictionResponse:
        request = prediction_pb2.AlignPredictionRequest(
            prediction=self._name,
            nonce=nonce,
            n_rows=self._rows.n_ids,
            form=rules_of(self._table.id_form),
            aligned=self._wanted.aligned,
        )
        return await self._call("AlignPrediction", request, prediction_pb2.AlignPredictionResponse)

    async def _intersect(self, n_host: int) -> tuple[ScoredShards, int]:
        nonce = token_bytes(NONCE_BYTES)
        begun = await self._align(nonce)
        alignment = await self._alignments.begin(begun.session, nonce, begun.nonce, self._rows, n_host)

        async def settle(common: CommonShard) -> None:
            await self._settle(common.shard, common.tags)
            await self._alignments.compute(np.array(common.places, np.int64).tofile, self._places_path(common.shard))

        def tell(progress: AlignmentProgress) -> None:
            self._on_progress(Stage("aligning", progress.done, progress.n_shards))

        await alignment.run(settle, tell)
        n_shards = alignment.session.dealing.n_shards
        return self._rows.dealt(n_shards), n_shards

    async def _prove(self, n_host: int) -> tuple[ScoredShards, int]:
        nonce = token_bytes(NONCE_BYTES)
        nonces = nonce, (await self._align(nonce)).nonce
        dealing = Dealing.of(*nonces, self._rows.n_ids, n_host)
        shards = await self._alignments.compute(self._rows.deal, dealing)

        def prove(shard: int) -> bytes:
            ids = shards.ids(shard)
            order = canonical_order(ids)
            np.array(order, np.int64).tofile(self._places_path(shard))
            return id_digest([ids[place] for place in order], *nonces, Role.GUEST)

        async def settle(shard: int) -> None:
            await self._settle(shard, await self._alignments.compute(prove, shard))

        await self._for_each(dealing.n_shards, settle, "comparing")
        return shards, dealing.n_shards

    async def _settle(self, shard: int, told: bytes) -> None:
        request = prediction_pb2.SettleShardRequest(prediction=self._name, shard=shard, told=told)
        await self._call("SettleShard", request, prediction_pb2.SettleShardResponse)

    def _places_path(self, shard: int) -> Path:
        """File of the places of the common rows among those of a shard; int64, without a header."""
        return self._folder / f"common-{shard}"

    # --- the scores

    async def _fetch(self, shards: ScoredShards, n_shards: int, totals: FloatVector) -> None:
        """Put u_A + u_B of the common rows into `totals`, shape (n_rows,), and NaN for all others."""
        totals[:] = np.nan

        def add(shard: int, scores: FloatVector) -> None:
            own, places = shards.read(shard), np.fromfile(self._places_path(shard), np.int64)
            if scores.shape != places.shape or not np.isfinite(scores).all():
                raise ProtocolError(f"the host sent {len(scores)} scores where {len(places)} are due, or some are none")
            totals[own.rows[places]] = own.scores[places] + scores

        async def fetch(shard: int) -> None:
            request = prediction_pb2.GetScoresRequest(prediction=self._name, shard=shard)
            answer = await self._call("GetScores", request, prediction_pb2.GetScoresResponse)
            await self._alignments.compute(add, shard, np.array(answer.scores))

        await self._for_each(n_shards, fetch, "scoring")

    def _write(self, totals: FloatVector) -> int:
        """Write both files; return how many rows have a score."""
        n_scored = 0

        def pieces() -> Iterator[tuple[pa.Array, FloatVector]]:
            nonlocal n_scored
            start = 0
            for ids in self._rows.written():
                scores = totals[start : start + len(ids)]
                start += len(ids)
                n_scored += int(np.isfinite(scores).sum())
                self._on_progress(Stage("writing", start, self._rows.n_ids))
                yield ids, scores

        calibration = self._model.calibration
        if calibration is None:
            raise DataError("the guest's part of the model has no calibration")
        missing = None if self._wanted.aligned else self._wanted.missing
        write_scores(self._wanted.out, missing, pieces(), lambda scores: calibrate(scores, calibration))
        return n_scored

    # --- calls

    async def _for_each(self, n_shards: int, work: Callable[[int], Awaitable[None]], doing: str) -> None:
        """Do it for each shard, several at a time."""
        done = 0

        async def work_on(shard: int) -> None:
            nonlocal done
            await work(shard)
            done += 1
            self._on_progress(Stage(doing, done, n_shards))

        await for_each(n_shards, IN_FLIGHT, work_on)

    async def _call(self, method: str, request: Message, response: type[Response]) -> Response:
        return await self._alignments.call(f"PredictionService/{method}", request, response)

    async def _close(self) -> None:
        """Let the host forget the prediction, if it can be told at all."""
        request = prediction_pb2.ClosePredictionRequest(prediction=self._name)
        with suppress(TrilateralError, TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._call("ClosePrediction", request, prediction_pb2.ClosePredictionResponse)
