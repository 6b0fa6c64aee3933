"""The guest's side of a prediction: score its own rows, ask the host for its part, and write the sums to a file.

All intermediate data are in a folder on disk, so that memory is bounded for any number of rows.
"""

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from secrets import token_bytes
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from google.protobuf.message import Message

from trilateral.common.base.arrays import FloatArray, FloatVector, of_each_row
from trilateral.common.base.errors import ConfigError, DataError, PeerError, ProtocolError, TrilateralError
from trilateral.common.base.permissions import explain
from trilateral.common.base.roles import Role
from trilateral.common.base.tasks import for_each
from trilateral.common.config.dataset import DatasetConfig
from trilateral.common.config.process import ProcessConfig
from trilateral.common.data.alignment.dealing import Dealing
from trilateral.common.data.alignment.guest_session import CommonShard
from trilateral.common.data.model import score_origin
from trilateral.common.data.model.distributions import ShiftCounter, describe_shift
from trilateral.common.data.model.model_file import PartyModel, check_half, load_model
from trilateral.common.data.model.reasons import NONE, Places, Reasons, check_one_score, reason_columns
from trilateral.common.data.model.score_columns import clash_of, reason_headers
from trilateral.common.data.model.scoring import score_table
from trilateral.common.data.model.spool import ScoredRows, ScoredShards
from trilateral.common.data.party_data import describe_left_out
from trilateral.common.data.tables.id_form import form_of
from trilateral.common.jobs.drift_file import keep_shift
from trilateral.common.jobs.folder import JobFolder
from trilateral.common.jobs.policy import check_prediction
from trilateral.common.jobs.quota import IdQuota
from trilateral.common.pb.v1 import prediction_pb2
from trilateral.common.protocol.alignment import AlignmentProgress
from trilateral.common.protocol.ids import NONCE_BYTES, id_digest
from trilateral.common.rpc.calls import first_contact
from trilateral.common.rpc.channel import Peer
from trilateral.common.rpc.codec import MAX_TOTAL, PREDICTION_BYTES
from trilateral.common.scratch.folders import SCRATCH, scratch_folder
from trilateral.common.scratch.space import ScratchSpace
from trilateral.guest_party.alignment import GuestAlignments, OnStage, Stage
from trilateral.guest_party.reasons import check_labels, check_n_reasons, read_codes
from trilateral.guest_party.score_file import ROW_BYTES, ScoreFiles, figures_of, score_files

Response = TypeVar("Response", bound=Message)

CLOSE_SECONDS = 5.0
"""How long the guest tries to close a prediction at a host that may be gone."""


@dataclass(frozen=True)
class PredictionPlan:
    """A prediction that the guest wants.

    Attributes:
        job: name of the job that trained the model.
        dataset: name of the table in the configurations of both parties.
        out: file for the scores.
        missing: file for the guest's IDs that the host does not hold.
        aligned: whether both tables hold the same IDs already.
        n_reasons: how many of the guest's own columns that raise a score most to write beside it.
        n_host_reasons: how many of the host's reason codes to ask for.
    """

    job: str
    dataset: str
    out: Path
    missing: Path
    aligned: bool = False
    n_reasons: int = 0
    n_host_reasons: int = 0


@dataclass(frozen=True)
class PredictionCounts:
    """Numbers of rows of a prediction.

    Attributes:
        n_scored: rows with a score.
        n_guest: rows of the guest's table.
        n_host: rows of the host's table.
        warnings: what the guest should check in its own table.
        notes: which columns of the guest's table the model does not use although no setting excludes them, and why; and
            how far rows and scores have shifted since the training, if there are enough of them.
        calibration: how far the probabilities can be trusted, in words.
    """

    n_scored: int
    n_guest: int
    n_host: int
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    calibration: str = ""


async def predict(
    config: ProcessConfig, host: Peer, plan: PredictionPlan, on_stage: OnStage = lambda _: None
) -> PredictionCounts:
    """Score the rows that both parties hold, and write the scores to a file.

    Args:
        config: configuration of the guest.
        host: the host.
        plan: what to predict.
        on_stage: called with each stage of the work, from several threads.

    Returns:
        The numbers of rows.

    Raises:
        TrilateralError: a table, a model or a file cannot be used, a policy refuses, or the host does not answer. No
            file is written.
    """
    check_n_reasons(plan.n_reasons, plan.n_host_reasons)
    table = check_prediction(plan.job, plan.dataset, config.datasets, config.policy, Role.GUEST)
    _check_files(plan, table)
    model = load_model(JobFolder(config.state, plan.job).find_model())
    check_half(model, Role.GUEST, plan.job, model.run_id)
    _check_names(plan, table, model)
    about = {
        score_origin.JOB: model.job.name,
        score_origin.RUN: model.run_id,
        "trilateral.calibration": model.calibration_summary or "",
    }
    missing = None if plan.aligned else plan.missing
    # The files are opened first: scores that cannot be written would count as given all the same.
    named = reason_headers(plan.n_reasons, plan.n_host_reasons)
    schema = {**figures_of(model).schema, **dict.fromkeys(named, pa.string())}
    with score_files(plan.out, missing, about, table.id_columns, schema) as files:
        await first_contact(host, Role.GUEST, config.limits)
        try:
            with scratch_folder(config.scratch_folder) as folder:
                prediction = _Prediction(
                    config, host, plan, table=table, model=model, folder=folder, files=files, on_stage=on_stage
                )
                return await prediction.run()
        except OSError as error:
            raise ConfigError(
                f"scratch.folder: {config.scratch_folder / SCRATCH} cannot be written:"
                f" {explain(error, config.scratch_folder / SCRATCH)}"
            ) from error


def _on_disk(path: Path, dtype: type[np.generic], shape: tuple[int, ...]) -> Any:
    """Make an array in a file.

    Raises:
        OSError: there is no room. Without the room, the system would kill the process at a write.
    """
    n_bytes = np.dtype(dtype).itemsize * int(np.prod(shape))
    with path.open("xb") as file:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, n_bytes)
        else:
            file.truncate(n_bytes)
    return np.memmap(path, dtype, "r+", shape=shape)


def _check_names(plan: PredictionPlan, table: DatasetConfig, model: PartyModel) -> None:
    clash = clash_of(table.id_columns, None if model.classes is None else model.classes.names)
    if clash is not None:
        raise ConfigError(f"datasets.{plan.dataset}: {clash}")


def _check_files(plan: PredictionPlan, table: DatasetConfig) -> None:
    if len({path.resolve() for path in (plan.out, plan.missing, table.path)}) < 3:
        raise ConfigError(
            f"{plan.out}: the scores, the missing IDs and the dataset {plan.dataset} need three different files"
        )


class _Prediction:
    """One prediction in progress at the guest."""

    def __init__(
        self,
        config: ProcessConfig,
        host: Peer,
        plan: PredictionPlan,
        *,
        table: DatasetConfig,
        model: PartyModel,
        folder: Path,
        files: ScoreFiles,
        on_stage: OnStage,
    ) -> None:
        self._config = config
        self._files = files
        self._plan = plan
        self._table = table
        self._model = model
        self._folder = folder
        self._on_stage = on_stage
        quota = IdQuota.of(config)
        self._alignments = GuestAlignments(host, config.limits, lambda: quota)
        self._n_models = len(model.parts)
        self._reasons = Reasons.of_columns(model, plan.n_reasons) if plan.n_reasons else None
        if plan.n_host_reasons:
            check_one_score(model)
        self._rows = ScoredRows(folder, table.id_columns, self._n_models, plan.n_reasons)
        self._labels: Sequence[str] = ()
        """What the host's reason codes mean."""
        self._name = token_bytes(PREDICTION_BYTES)
        self._warnings: list[str] = []
        self._shift = ShiftCounter(model.distributions, [each.score_distribution for each in model.parts])
        self._over = threading.Event()
        """Ends the thread that reads the table."""

    async def run(self) -> PredictionCounts:
        """Run all steps in order."""
        try:
            n_host = await self._read_both()
            row_bytes = self._n_models * ROW_BYTES + self._reason_bytes
            self._files.check_room(self._rows.n_bytes + self._rows.n_ids * row_bytes)
            shards, n_shards = await (self._prove(n_host) if self._plan.aligned else self._intersect(n_host))
            shape = (self._rows.n_ids,) if self._model.classes is None else (self._rows.n_ids, self._n_models)
            totals: FloatArray = _on_disk(self._folder / "totals", np.float64, shape)
            codes = self._no_codes()
            await self._fetch(shards, n_shards, totals, codes)
            n_scored = await self._alignments.compute(self._write, totals, codes)
        finally:
            try:
                await self._close()
            finally:
                # A thread outlives its cancelled caller. Wait for it, because it may still write to the folder.
                await self._alignments.computed()
                self._rows.finish()
        shift = self._shift.shift
        folder = JobFolder(self._config.state, self._plan.job)
        await self._alignments.compute(keep_shift, folder, self._plan.dataset, shift)
        described = describe_shift(shift)
        return PredictionCounts(
            n_scored,
            self._rows.n_ids,
            n_host,
            warnings=tuple(self._warnings),
            notes=(*describe_left_out(self._model.left_out), *([described] if described else [])),
            calibration=self._model.calibration_summary or "",
        )

    @property
    def _reason_bytes(self) -> int:
        """Bound of the bytes of a row's reasons in the file, with quotes and separators."""
        own = self._reasons.names if self._reasons else ()
        return sum(
            n_reasons * (3 + max((len(name.encode()) for name in names), default=0))
            for n_reasons, names in ((self._plan.n_reasons, own), (self._plan.n_host_reasons, self._labels))
        )

    # --- reading both tables at the same time

    async def _read_both(self) -> int:
        """Open the prediction at the host while the guest's table is read; return the number of the host's rows."""
        opening, reading = asyncio.create_task(self._open()), asyncio.create_task(self._read())
        try:
            done, _ = await asyncio.wait({opening, reading}, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            # The reading thread ends after its current piece. Only then can its file be closed.
            self._over.set()
            opening.cancel()
            await asyncio.gather(opening, reading, return_exceptions=True)
        for task in done:
            task.result()
        return opening.result()

    async def _open(self) -> int:
        request = prediction_pb2.OpenPredictionRequest(
            job=self._plan.job,
            run_id=bytes.fromhex(self._model.run_id),
            prediction=self._name,
            model=self._model.shared_digest,
            dataset=self._plan.dataset,
            n_reasons=self._plan.n_host_reasons,
        )
        opened = await self._call("OpenPrediction", request, prediction_pb2.OpenPredictionResponse)
        self._labels, n_rows = check_labels(opened.labels), opened.n_rows
        if not 1 <= n_rows <= MAX_TOTAL:
            raise ProtocolError(f"the host reports a table of {n_rows} rows: expected 1 to {MAX_TOTAL}")
        return n_rows

    async def _read(self) -> None:
        def report(n_rows: int) -> None:
            if self._over.is_set():
                raise PeerError("the prediction has ended")
            self._on_stage(Stage("reading", n_rows))

        def read() -> list[str]:
            with ScratchSpace.of(self._config).open() as scratch:
                return score_table(
                    self._model, self._table, self._rows, report, scratch, shift=self._shift, reasons=self._reasons
                )

        self._warnings = await self._alignments.compute(read)

    # --- finding the common rows

    async def _align(self, nonce: bytes) -> prediction_pb2.AlignPredictionResponse:
        request = prediction_pb2.AlignPredictionRequest(
            prediction=self._name,
            nonce=nonce,
            n_rows=self._rows.n_ids,
            form=form_of(self._table),
            aligned=self._plan.aligned,
        )
        return await self._call("AlignPrediction", request, prediction_pb2.AlignPredictionResponse)

    async def _intersect(self, n_host: int) -> tuple[ScoredShards, int]:
        nonce = token_bytes(NONCE_BYTES)
        begun = await self._align(nonce)
        alignment = await self._alignments.begin(begun.session, nonce, begun.nonce, self._rows, n_host)

        async def settle(common: CommonShard) -> None:
            await self._settle(common.shard, common.tags)
            await self._alignments.compute(common.places.tofile, self._places_path(common.shard))

        def report(progress: AlignmentProgress) -> None:
            self._on_stage(Stage("aligning", progress.done, progress.n_shards))

        await alignment.run(settle, report)
        n_shards = alignment.session.dealing.n_shards
        return self._rows.dealt(n_shards), n_shards

    async def _prove(self, n_host: int) -> tuple[ScoredShards, int]:
        nonce = token_bytes(NONCE_BYTES)
        if n_host != self._rows.n_ids:  # The number of shards follows from the larger of the two.
            raise DataError(
                f"the host has {n_host} rows and the guest has {self._rows.n_ids}: both must hold the same IDs; if they"
                " do not, leave out --aligned"
            )
        nonces = nonce, (await self._align(nonce)).nonce
        dealing = Dealing.of(*nonces, self._rows.n_ids, n_host)
        shards = await self._alignments.compute(self._rows.deal, dealing)

        def prove(shard: int) -> bytes:
            ids = shards.read(shard).ids
            order = ids.order()
            order.tofile(self._places_path(shard))
            return id_digest(ids.take(order).digest(), *nonces, Role.GUEST)

        async def settle(shard: int) -> None:
            await self._settle(shard, await self._alignments.compute(prove, shard))

        await self._for_each(dealing.n_shards, settle, "comparing")
        return shards, dealing.n_shards

    async def _settle(self, shard: int, proof: bytes) -> None:
        request = prediction_pb2.SettleShardRequest(prediction=self._name, shard=shard, told=proof)
        await self._call("SettleShard", request, prediction_pb2.SettleShardResponse)

    def _places_path(self, shard: int) -> Path:
        """Return the file with the places of the common rows within a shard: int64, without a header."""
        return self._folder / f"common-{shard}"

    # --- adding the scores

    async def _fetch(self, shards: ScoredShards, n_shards: int, totals: FloatArray, codes: Places) -> None:
        """Put u_A + u_B of the common rows into `totals`, shape (n_rows,), and NaN for the other rows.

        In a model of classes, the shape is (n_rows, n_classes). The host's reasons go to `codes`.
        """
        totals[:] = np.nan

        def add(shard: int, scores: FloatVector, reasons: bytes) -> None:
            own, places = shards.read(shard), np.fromfile(self._places_path(shard), np.int64)
            if len(scores) != len(places) * self._n_models or not np.isfinite(scores).all():
                raise ProtocolError(
                    f"the host sent {len(scores)} scores for {len(places)} common rows, or some are not finite"
                )
            part = own.scores[places]
            totals[own.rows[places]] = part + scores.reshape(part.shape)
            if codes.shape[1]:
                codes[own.rows[places]] = read_codes(reasons, len(places), codes.shape[1], self._labels)

        async def fetch(shard: int) -> None:
            request = prediction_pb2.GetScoresRequest(prediction=self._name, shard=shard)
            answer = await self._call("GetScores", request, prediction_pb2.GetScoresResponse)
            await self._alignments.compute(add, shard, np.array(answer.scores), answer.reasons)

        await self._for_each(n_shards, fetch, "scoring")

    def _no_codes(self) -> Places:
        """Return an array on disk for the host's reasons, without any."""
        shape = self._rows.n_ids, self._plan.n_host_reasons
        if not self._plan.n_host_reasons:
            return np.empty(shape, np.int16)
        codes: Places = _on_disk(self._folder / "codes", np.int16, shape)
        codes[:] = NONE
        return codes

    def _write(self, totals: FloatArray, codes: Places) -> int:
        """Write both files; return the number of rows with a score."""
        figures = figures_of(self._model)
        names = self._reasons.names if self._reasons else ()
        n_scored = start = 0
        for ids, own in self._rows.written():
            scores, hosts = totals[start : start + len(ids)], codes[start : start + len(ids)]
            found = of_each_row(np.isfinite(scores))
            reasons = [*reason_columns(names, own[found]), *reason_columns(self._labels, hosts[found])]
            start += len(ids)
            n_scored += int(found.sum())
            self._shift.add_scores(scores[found])
            self._on_stage(Stage("writing", start, self._rows.n_ids))
            self._files.write(ids, scores, lambda part, reasons=reasons: [*figures.of(part), *reasons])  # type: ignore[misc]
        return n_scored

    # --- calls

    async def _for_each(self, n_shards: int, work: Callable[[int], Awaitable[None]], doing: str) -> None:
        """Run `work` for each shard, several shards at a time."""
        done = 0

        async def work_on(shard: int) -> None:
            nonlocal done
            await work(shard)
            done += 1
            self._on_stage(Stage(doing, done, n_shards))

        await for_each(n_shards, self._alignments.crews.local.n_at_a_time, work_on)

    async def _call(self, method: str, request: Message, response: type[Response]) -> Response:
        return await self._alignments.call(f"PredictionService/{method}", request, response)

    async def _close(self) -> None:
        """Tell the host to forget the prediction, if it answers."""
        request = prediction_pb2.ClosePredictionRequest(prediction=self._name)
        with suppress(TrilateralError, TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._call("ClosePrediction", request, prediction_pb2.ClosePredictionResponse)
