"""The asynchronous API. The synchronous one in `trilateral.client.session` runs it in a background thread."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from trilateral.client.errors import JobFailedError, JobStoppedError, check_names, wrong_type
from trilateral.common.base.errors import ConfigError
from trilateral.common.base.html import facts_html
from trilateral.common.base.permissions import explain
from trilateral.common.base.roles import Role
from trilateral.common.config.job import JobConfig
from trilateral.common.config.load import load_job, load_process_config
from trilateral.common.config.process import ProcessConfig
from trilateral.common.config.settings import parse_settings
from trilateral.common.jobs.folder import JobFolder
from trilateral.common.process.job_client import JobClient, LostContactError, OnLost
from trilateral.common.process.job_progress import JobState, Progress, progress_of
from trilateral.common.scratch.folders import scratch_folder

# Only the guest has the guest's code, and tables and models take long to import: each is imported where it is used.
if TYPE_CHECKING:
    import pandas as pd

    from trilateral.client.model import Model
    from trilateral.common.rpc.channel import Peer
    from trilateral.guest_party.alignment import OnStage
    from trilateral.guest_party.dataset_alignment import DatasetAlignment
    from trilateral.guest_party.prediction import PredictionCounts


@dataclass(frozen=True, eq=False)
class Prediction:
    """Scores of a dataset, in memory.

    Attributes:
        scores: a row for each common ID, in the order of the guest's table, with the columns `id`, `score` (the sum u
            of both parties' parts) and `probability` (calibrated probability of the positive label). If the dataset's
            ID has several columns, they are here in place of `id`.
        missing: the guest's IDs that the host does not hold: a Series, or a DataFrame if an ID has several columns.
        counts: how many rows were scored and how many each party has.
    """

    scores: "pd.DataFrame"
    missing: "pd.Series[str] | pd.DataFrame"
    counts: "PredictionCounts"

    def _repr_html_(self) -> str:
        """Describe the prediction in a notebook. The scores of rows are in `scores`."""
        counts = self.counts
        return facts_html(
            "prediction",
            {
                "scored rows": f"{counts.n_scored:,}",
                "rows of the guest": f"{counts.n_guest:,}",
                "rows of the host": f"{counts.n_host:,}",
                "probabilities": counts.calibration or None,
                "notes": "; ".join((*counts.warnings, *counts.notes)) or None,
            },
        )


@dataclass(frozen=True)
class Score:
    """The online score of a row.

    Attributes:
        id: the ID as it was asked for; a tuple of its parts if it has several columns.
        score: u, the sum of both parties' parts; None if a party lacks the ID.
        probability: calibrated probability of the positive label; None like `score`.
        lacking: the party that does not hold the ID, `host` or `guest`; None if there is a score.
        reasons: the guest's columns that raise the score most, the strongest first, as many as were asked for.
        host_reasons: what the host says of its columns that raise the score most.
    """

    id: str | tuple[str, ...]
    score: float | None
    probability: float | None
    lacking: Role | None
    reasons: tuple[str, ...] = ()
    host_reasons: tuple[str, ...] = ()


def connect(config: str | os.PathLike[str] | ProcessConfig) -> "AsyncSession":
    """Open a session with your own organisation's process.

    Args:
        config: the configuration of that process: the path of the YAML file, or what `trilateral.load_config`
            returned. Environment variables override a file, as they do for the process itself.

    Returns:
        The session. Use it in ``async with``.

    Raises:
        ConfigError: the configuration cannot be used. The text has a line for each problem.
    """
    return AsyncSession(config if isinstance(config, ProcessConfig) else load_config(config))


def load_config(path: str | os.PathLike[str]) -> ProcessConfig:
    """Load the configuration of a process. Environment variables override what the file says.

    Args:
        path: the YAML file. Paths inside it are relative to its folder.

    Returns:
        The checked configuration.

    Raises:
        ConfigError: the configuration cannot be used. The text has a line for each problem.
        TypeError: `path` is not a path.
    """
    if not isinstance(path, str | os.PathLike):
        raise wrong_type("config", "the path of a YAML file, or what `load_config` returned", path)
    return load_process_config(Path(path))


class AsyncSession:
    """What one organisation can do: run jobs at the coordinator, align and predict, and load its part of a model.

    Use it in ``async with``. It belongs to the event loop that enters it. Connecting happens with the first call.

    Args:
        config: configuration of the organisation's own process.

    Example:
        >>> import asyncio
        >>> from trilateral import aio
        >>> async def train() -> None:
        ...     async with aio.connect("guest.yaml") as session:
        ...         run = await session.train({"name": "churn", "dataset": "customers"})
        ...         async for progress in run:
        ...             print(progress.epoch, progress.loss)
        >>> asyncio.run(train())  # doctest: +SKIP
    """

    def __init__(self, config: ProcessConfig) -> None:
        self.config = config
        self._resources = AsyncExitStack()
        self._client: JobClient | None = None
        self._own: Peer | None = None
        """The organisation's own process."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of the {self.config.role}>"

    async def __aenter__(self) -> Self:
        self._client = await self._resources.enter_async_context(JobClient(self.config))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._client = self._own = None
        await self._resources.aclose()

    @property
    def _coordinator(self) -> JobClient:
        if self._client is None:
            raise RuntimeError("the session is not open: use it in `async with`")
        return self._client

    # --- jobs

    async def train(self, job: JobConfig | Mapping[str, Any] | str | os.PathLike[str]) -> "AsyncRun":
        """Start a job.

        The call returns once the coordinator has accepted the job. Iterate over the run to learn whether both parties
        accept it and how the training goes.

        Args:
            job: the job: a `trilateral.Job`, its options as a dict, or the path of a YAML file.

        Returns:
            The run of the job.

        Raises:
            ConfigError: an option cannot be used. The text has a line for each problem.
            NameTakenError: there is a job of that name already.
            AccessError: the coordinator does not let this organisation start jobs.
            PeerError: the coordinator cannot be reached.
        """
        settings = _job_of(job)
        await self._coordinator.start(settings)
        return AsyncRun(self, settings.name)

    async def jobs(self) -> list[Progress]:
        """List the jobs that the coordinator knows, oldest first.

        Returns:
            A snapshot of each job, without notes.

        Raises:
            PeerError: the coordinator cannot be reached.
        """
        return [progress_of(status) for status in await self._coordinator.statuses()]

    async def find(self, job: str) -> "AsyncRun":
        """Find a job, whoever started it.

        Args:
            job: name of the job.

        Returns:
            The run of the job.

        Raises:
            UnknownJobError: the coordinator does not know the job.
            PeerError: the coordinator cannot be reached.
        """
        check_names(job=job)
        await self._coordinator.status(job)
        return AsyncRun(self, job)

    # --- at the guest

    async def align(self, dataset: str, *, on_stage: "OnStage | None" = None) -> "DatasetAlignment":
        """Count the IDs that both parties hold. Neither party sees the other's remaining IDs.

        Only the guest can do this. The host learns how many IDs the guest has.

        Args:
            dataset: name of the dataset in the configurations of both parties.
            on_stage: called with each `Stage` of the work, from any thread.

        Returns:
            The numbers of IDs.

        Raises:
            ConfigError: this is not the guest, or it has no such dataset.
            DataError: a table cannot be used.
            PolicyError: a party's policy refuses.
            PeerError: the host cannot be reached.
        """
        check_names(dataset=dataset)
        self._check_guest("only the guest can count the common IDs of a dataset")
        from trilateral.guest_party.dataset_alignment import align_dataset

        async with self._host() as host:
            return await align_dataset(self.config, host, dataset, on_stage or _ignore)

    async def predict(
        self,
        job: str,
        dataset: str,
        *,
        aligned: bool = False,
        reasons: int = 0,
        host_reasons: int = 0,
        on_stage: "OnStage | None" = None,
    ) -> Prediction:
        """Score the rows that both parties hold, in memory.

        Only the guest can do this, and the host's policy must allow it.

        Args:
            job: name of the job that trained the model.
            dataset: name of the dataset in the configurations of both parties.
            aligned: whether both tables hold the same IDs, so that no intersection is needed.
            reasons: how many of the guest's own columns that raise a score most to add: `reason_1` and so on.
            host_reasons: how many of the host's reason codes to add: `host_reason_1` and so on. Its policy must allow
                them.
            on_stage: called with each `Stage` of the work, from any thread.

        Returns:
            The scores and calibrated probabilities.

        Raises:
            ConfigError: this is not the guest.
            DataError: a table or a model cannot be used.
            PolicyError: a party's policy refuses.
            PeerError: the host cannot be reached.
        """
        import pandas as pd

        check_names(job=job, dataset=dataset)
        self._check_guest("only the guest can predict")
        try:
            with scratch_folder(self.config.scratch_folder) as folder:
                out, missing = folder / "scores.parquet", folder / "missing.parquet"
                counts = await self.predict_to_file(
                    job,
                    dataset,
                    out,
                    missing=missing,
                    aligned=aligned,
                    reasons=reasons,
                    host_reasons=host_reasons,
                    on_stage=on_stage,
                )
                scores = pd.read_parquet(out)
                columns = self.config.datasets[dataset].id_columns
                ids = list(columns) if len(columns) > 1 else ["id"]
                unscored = scores[ids].iloc[:0] if aligned else pd.read_parquet(missing)
                one_column = unscored.shape[1] == 1
                return Prediction(scores, unscored.iloc[:, 0] if one_column else unscored, counts)
        except OSError as error:
            raise ConfigError(
                f"state: the folder {self.config.state} cannot be written: {explain(error, self.config.state)}"
            ) from error

    async def predict_to_file(
        self,
        job: str,
        dataset: str,
        out: str | os.PathLike[str],
        *,
        missing: str | os.PathLike[str] | None = None,
        aligned: bool = False,
        reasons: int = 0,
        host_reasons: int = 0,
        on_stage: "OnStage | None" = None,
    ) -> "PredictionCounts":
        """Score the rows that both parties hold, in bounded memory, and write the scores to a file.

        Only the guest can do this, and the host's policy must allow it.

        Args:
            job: name of the job that trained the model.
            dataset: name of the dataset in the configurations of both parties.
            out: file for the scores, ``.csv`` or ``.parquet``, with the columns `id` (or those of an ID of several
                columns), `score` and `probability`.
            missing: file for the guest's IDs that the host does not hold; next to `out` by default.
            aligned: whether both tables hold the same IDs, so that no intersection is needed and `missing` is not
                written.
            reasons: how many of the guest's own columns that raise a score most to write: `reason_1` and so on.
            host_reasons: how many of the host's reason codes to write: `host_reason_1` and so on. Its policy must allow
                them.
            on_stage: called with each `Stage` of the work, from any thread.

        Returns:
            The numbers of rows.

        Raises:
            ConfigError: this is not the guest, or a file cannot be written.
            DataError: a table or a model cannot be used.
            PolicyError: a party's policy refuses.
            PeerError: the host cannot be reached.
        """
        check_names(job=job, dataset=dataset)
        for name, path in (("out", out), ("missing", missing)):
            if not isinstance(path, str | os.PathLike) and not (name == "missing" and path is None):
                raise wrong_type(name, "the path of a .csv or .parquet file", path)
        self._check_guest("only the guest can predict")
        from trilateral.guest_party.prediction import PredictionPlan, predict

        target = Path(out)
        unscored = missing_file(target) if missing is None else Path(missing)
        plan = PredictionPlan(job, dataset, target, unscored, aligned, reasons, host_reasons)
        async with self._host() as host:
            return await predict(self.config, host, plan, on_stage or _ignore)

    async def score(
        self,
        job: str,
        dataset: str,
        ids: Sequence[str | Sequence[str]],
        *,
        features: Sequence[Mapping[Any, Any] | None] | None = None,
        reasons: int = 0,
        host_reasons: int = 0,
    ) -> "list[Score]":
        """Score single rows within milliseconds, by the guest's running process.

        Only the guest can do this. The host must name the job and the dataset in `online.precompute`, and counts each
        ID that the guest has features of.

        Args:
            job: name of the job that trained the model.
            dataset: name of the dataset in the configurations of both parties.
            ids: one to a hundred IDs; a sequence of parts for an ID of several columns.
            features: for each ID, the guest's features by the name of their column, or None to take them from the
                guest's table. By default all come from the table.
            reasons: how many of the guest's own columns that raise a score most to name, at most 10.
            host_reasons: how many of the host's reason codes to name. The host must prepare as many.

        Returns:
            A score for each ID, in the same order.

        Raises:
            ConfigError: this is not the guest.
            DataError: the model, the table, an ID or features cannot be used.
            PolicyError: a party's policy refuses, or there are too many requests.
            PeerError: the guest's process or the host does not answer, or is not ready.
            ValueError: there are not as many features as IDs, or too many reasons.
        """
        check_names(job=job, dataset=dataset)
        self._check_guest("only the guest can score rows")
        from trilateral.client.online import own_process, score_rows

        if self._own is None:
            self._own = await self._resources.enter_async_context(own_process(self.config))
        limits = self.config.limits
        return await score_rows(
            self._own,
            limits,
            job=job,
            dataset=dataset,
            ids=ids,
            features=features,
            reasons=reasons,
            host_reasons=host_reasons,
        )

    # --- at a party

    def model(self, job: str, of_class: str | None = None) -> "Model":
        """Load this party's part of the model of a finished job.

        Args:
            job: name of the job.
            of_class: in a model of several classes, the class; see `trilateral.load_model`.

        Returns:
            The party's part.

        Raises:
            ConfigError: this is the coordinator, which has no part, or the class is not named or does not exist.
            DataError: there is no such model in the state folder of the process, or it cannot be read.
        """
        from trilateral.client.model import load_model

        check_names(job=job)
        self._check_party("part of a model")
        return load_model(JobFolder(self.config.state, job).find_model(), of_class)

    async def shift(self, job: str, dataset: str) -> "pd.DataFrame":
        """Compare the rows of a dataset with those of a training, column by column and in bounded memory.

        Args:
            job: name of the job that trained the model.
            dataset: name of the dataset in the configuration of this party.

        Returns:
            A table like that of `Model.shift`.

        Raises:
            ConfigError: this is the coordinator, which has no rows.
            DataError: there is no such model, an earlier release wrote it, or the table cannot be used.
            PolicyError: there is no such dataset.
        """
        from trilateral.client.comparison import shift_of_table
        from trilateral.common.data.model.model_file import load_model
        from trilateral.common.jobs.policy import find_dataset

        check_names(job=job, dataset=dataset)
        self._check_party("rows")
        table = find_dataset(dataset, self.config.datasets, self.config.role)
        model = load_model(JobFolder(self.config.state, job).find_model())
        return await asyncio.to_thread(shift_of_table, model, table)

    def bins(self, job: str) -> "pd.DataFrame":
        """Load what this party got to know in a finished bins job.

        Args:
            job: name of the job, which had `task: bins`.

        Returns:
            A table like that of `Model.bins`. At the guest, it also has the host's columns, which are numbered.

        Raises:
            ConfigError: this is the coordinator, which has no bins.
            DataError: there is no such file in the state folder of the process, or it cannot be read.
        """
        from trilateral.client.model import load_bins

        check_names(job=job)
        self._check_party("bins")
        return load_bins(JobFolder(self.config.state, job).bins)

    def _check_party(self, what: str) -> None:
        if self.config.role is Role.COORDINATOR:
            raise ConfigError(f"the coordinator has no {what}: use the configuration of the host or the guest")

    def _check_guest(self, reason: str) -> None:
        role = self.config.role
        if role is not Role.GUEST:
            raise ConfigError(f"role: is {role}, but {reason}: use the guest's configuration")

    @asynccontextmanager
    async def _host(self) -> "AsyncIterator[Peer]":
        from trilateral.common.rpc.certificates import load_certificates
        from trilateral.common.rpc.channel import new_peer

        config = self.config
        peer = new_peer(Role.HOST, config.peers[Role.HOST], config, load_certificates(config))
        try:
            yield peer
        finally:
            await peer.close()


class AsyncRun:
    """A job at the coordinator. Iterate over it to follow the job to its end.

    Args:
        session: session whose coordinator has the job.
        name: name of the job.
    """

    def __init__(self, session: AsyncSession, name: str) -> None:
        self.name = name
        self._session = session

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"

    def __aiter__(self) -> AsyncIterator[Progress]:
        return self.watch()

    async def watch(self, *, patience: float = 0.0, on_lost: OnLost = lambda _: None) -> AsyncIterator[Progress]:
        """Yield the progress of the job now and after each change, until the job ends.

        Leaving the loop early does not affect the job.

        Args:
            patience: seconds for which to try again if the coordinator is away.
            on_lost: called when that begins, with the reason.

        Yields:
            Snapshots of the job. The last one has a final state.

        Raises:
            JobFailedError: the job failed. The snapshot that says so comes first.
            JobStoppedError: the job was stopped. The snapshot that says so comes first.
            UnknownJobError: the coordinator does not know the job.
            LostContactError: the coordinator is away, and the job continues.
            PeerError: the coordinator cannot be called.
        """
        try:
            async for status in self._session._coordinator.watch(self.name, patience=patience, on_lost=on_lost):
                progress = progress_of(status)
                yield progress
                if progress.state.is_final:
                    _check_outcome(progress)
        except LostContactError as error:
            raise LostContactError(
                f"lost contact with job {self.name}, but the job continues: {error}. Watch the job again when the "
                "coordinator is back"
            ) from error

    async def progress(self) -> Progress:
        """Return a snapshot of the job, with all its notes.

        Raises:
            UnknownJobError: the coordinator does not know the job.
            PeerError: the coordinator cannot be reached.
        """
        return progress_of(await self._session._coordinator.status(self.name))

    async def wait(
        self,
        *,
        on_progress: Callable[[Progress], None] = lambda _: None,
        patience: float = 0.0,
        on_lost: OnLost = lambda _: None,
    ) -> Progress:
        """Wait until the job has finished.

        Args:
            on_progress: called with each snapshot, the last one included.
            patience: seconds for which to try again if the coordinator is away.
            on_lost: called when that begins, with the reason.

        Returns:
            The last snapshot, with the loss of the result.

        Raises:
            JobFailedError: the job failed.
            JobStoppedError: the job was stopped.
            PeerError: as `watch`.
        """
        final: Progress | None = None
        async for progress in self.watch(patience=patience, on_lost=on_lost):
            on_progress(progress)
            final = progress
        assert final is not None  # noqa: S101 (`watch` yields or raises)
        return final

    async def losses(self) -> dict[int, float]:
        """Return the loss of each round that is over.

        Returns:
            Losses by round. A round is missing if it was void or if the coordinator keeps its loss from this
            organisation.

        Raises:
            UnknownJobError: the coordinator does not know the job.
            PeerError: the coordinator cannot be reached.
        """
        losses: dict[int, float] = {}
        place, is_more = 0, True
        while is_more:
            answer = await self._session._coordinator.rounds(self.name, place)
            if answer.is_from_start:
                losses.clear()
            losses |= {each.round: each.loss for each in answer.rounds if each.HasField("loss")}
            place, is_more = answer.place, answer.is_more
        return losses

    async def stop(self) -> None:
        """End the job without a model. It can be resumed.

        Raises:
            AccessError: the coordinator does not let this organisation stop the job.
            ProtocolError: the job has ended already, or is about to finish.
            PeerError: the coordinator cannot be reached.
        """
        await self._session._coordinator.stop(self.name)

    async def resume(self) -> None:
        """Continue a job that failed or was stopped from where it was.

        Raises:
            ProtocolError: the job is running, or has finished.
            PolicyError: the coordinator runs its maximum number of jobs.
            AccessError: the coordinator does not let this organisation resume the job.
            PeerError: the coordinator cannot be reached.
        """
        await self._session._coordinator.resume(self.name)

    def model(self, of_class: str | None = None) -> "Model":
        """Load this party's part of the model. See `AsyncSession.model`."""
        return self._session.model(self.name, of_class)


def missing_file(out: Path) -> Path:
    """Return the default file for the IDs that the host does not hold, next to the file for the scores."""
    return out.with_suffix(f".missing{out.suffix}")


def _job_of(job: JobConfig | Mapping[str, Any] | str | os.PathLike[str]) -> JobConfig:
    match job:
        case JobConfig():
            return job
        case Mapping():
            return parse_settings(JobConfig, dict(job), "job")
        case str() | os.PathLike():
            return load_job(Path(job))
        case _:
            raise wrong_type("job", "a Job, a dict of its options, or the path of a YAML file", job)


def _check_outcome(progress: Progress) -> None:
    match progress.state:
        case JobState.FAILED:
            raise JobFailedError(progress)
        case JobState.STOPPED:
            raise JobStoppedError(progress)


def _ignore(_: object) -> None:
    """Report nothing."""
