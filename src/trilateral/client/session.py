"""The synchronous API: the asynchronous one, in a background thread."""

import os
import weakref
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from trilateral.client import asynchronous
from trilateral.client.asynchronous import AsyncRun, AsyncSession, Prediction, Score
from trilateral.client.background import BackgroundLoop
from trilateral.common.config.job import JobConfig
from trilateral.common.config.process import ProcessConfig
from trilateral.common.process.job_progress import Progress

if TYPE_CHECKING:
    import pandas as pd

    from trilateral.client.model import Model
    from trilateral.guest_party.alignment import OnStage
    from trilateral.guest_party.dataset_alignment import DatasetAlignment
    from trilateral.guest_party.prediction import PredictionCounts

T = TypeVar("T")


def connect(config: str | os.PathLike[str] | ProcessConfig) -> "Session":
    """Open a session with your own organisation's process.

    Args:
        config: the configuration of that process: the path of the YAML file, or what `load_config` returned.

    Returns:
        The session. Use it in ``with``, or close it with `Session.close`.

    Raises:
        ConfigError: the configuration or the certificate cannot be used. The text has a line for each problem.

    Example:
        >>> import trilateral
        >>> with trilateral.connect("guest.yaml") as session:  # doctest: +SKIP
        ...     run = session.train({"name": "churn", "dataset": "customers"})
        ...     for progress in run:
        ...         print(progress.epoch, progress.loss)
        ...     print(run.model().coef)
    """
    return Session(asynchronous.connect(config))


class Session:
    """What one organisation can do: run jobs at the coordinator, align and predict, and load its part of a model.

    `connect` makes a session. Sessions work inside a running event loop too, as in a notebook. A session may be used
    from several threads, but not inside its own callbacks. Connecting happens with the first call.
    """

    def __init__(self, session: AsyncSession) -> None:
        self._session = session
        loop = BackgroundLoop.acquire()
        try:
            loop.call(session.__aenter__)
        except BaseException:
            loop.release()
            raise
        self._loop = loop
        self._finalizer = weakref.finalize(self, _close, loop, session)

    def __repr__(self) -> str:
        return f"<Session of the {self.config.role}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the session. Jobs continue. Closing it again does nothing."""
        self._finalizer()

    @property
    def config(self) -> ProcessConfig:
        """The configuration of this organisation's process."""
        return self._session.config

    def train(self, job: JobConfig | Mapping[str, Any] | str | os.PathLike[str]) -> "Run":
        """Start a job.

        The call returns once the coordinator has accepted the job. Iterate over the run, or wait for it, to learn
        whether both parties accept the job and how the training goes.

        Args:
            job: the job: a `Job`, its options as a dict, or the path of a YAML file.

        Returns:
            The run of the job.

        Raises:
            ConfigError: an option cannot be used. The text has a line for each problem.
            NameTakenError: there is a job of that name already.
            AccessError: the coordinator does not let this organisation start jobs.
            PeerError: the coordinator cannot be reached.

        Example:
            >>> with trilateral.connect("guest.yaml") as session:  # doctest: +SKIP
            ...     final = session.train(trilateral.Job(name="churn", dataset="customers")).wait()
            ...     print(final.loss)
        """
        return Run(self, self._call(self._session.train, job))

    def jobs(self) -> list[Progress]:
        """List the jobs that the coordinator knows, oldest first.

        Returns:
            A snapshot of each job, without notes.

        Raises:
            PeerError: the coordinator cannot be reached.
        """
        return self._call(self._session.jobs)

    def find(self, job: str) -> "Run":
        """Find a job, whoever started it.

        Args:
            job: name of the job.

        Returns:
            The run of the job.

        Raises:
            UnknownJobError: the coordinator does not know the job.
            PeerError: the coordinator cannot be reached.
        """
        return Run(self, self._call(self._session.find, job))

    def align(self, dataset: str, *, on_stage: "OnStage | None" = None) -> "DatasetAlignment":
        """Count the IDs that both parties hold. Neither party sees the other's remaining IDs.

        Only the guest can do this. The host learns how many IDs the guest has.

        Args:
            dataset: name of the dataset in the configurations of both parties.
            on_stage: called with each `Stage` of the work, from background threads.

        Returns:
            The numbers of IDs.

        Raises:
            ConfigError: this is not the guest, or it has no such dataset.
            DataError: a table cannot be used.
            PolicyError: a party's policy refuses.
            PeerError: the host cannot be reached.
        """

        async def align() -> "DatasetAlignment":
            return await self._session.align(dataset, on_stage=on_stage)

        return self._call(align)

    def predict(
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
            on_stage: called with each `Stage` of the work, from background threads.

        Returns:
            The scores and calibrated probabilities.

        Raises:
            ConfigError: this is not the guest.
            DataError: a table or a model cannot be used.
            PolicyError: a party's policy refuses.
            PeerError: the host cannot be reached.

        Example:
            >>> with trilateral.connect("guest.yaml") as session:  # doctest: +SKIP
            ...     session.predict("churn", "customers").scores.head()
        """

        async def predict() -> Prediction:
            return await self._session.predict(
                job, dataset, aligned=aligned, reasons=reasons, host_reasons=host_reasons, on_stage=on_stage
            )

        return self._call(predict)

    def predict_to_file(
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
            on_stage: called with each `Stage` of the work, from background threads.

        Returns:
            The numbers of rows.

        Raises:
            ConfigError: this is not the guest, or a file cannot be written.
            DataError: a table or a model cannot be used.
            PolicyError: a party's policy refuses.
            PeerError: the host cannot be reached.
        """

        async def predict() -> "PredictionCounts":
            return await self._session.predict_to_file(
                job,
                dataset,
                out,
                missing=missing,
                aligned=aligned,
                reasons=reasons,
                host_reasons=host_reasons,
                on_stage=on_stage,
            )

        return self._call(predict)

    def score(
        self,
        job: str,
        dataset: str,
        ids: Sequence[str | Sequence[str]],
        *,
        features: Sequence[Mapping[Any, Any] | None] | None = None,
        reasons: int = 0,
        host_reasons: int = 0,
    ) -> list[Score]:
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

        Example:
            >>> with trilateral.connect("guest.yaml") as session:  # doctest: +SKIP
            ...     session.score("churn", "customers", ["P00421"])[0].probability
        """

        async def score() -> list[Score]:
            return await self._session.score(
                job, dataset, ids, features=features, reasons=reasons, host_reasons=host_reasons
            )

        return self._call(score)

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
        return self._session.model(job, of_class)

    def shift(self, job: str, dataset: str) -> "pd.DataFrame":
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
        return self._call(self._session.shift, job, dataset)

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
        return self._session.bins(job)

    def _call(self, function: Callable[..., Coroutine[Any, Any, T]], *args: object) -> T:
        self._check_open()
        return self._loop.call(function, *args)

    def _check_open(self) -> None:
        if not self._finalizer.alive:
            raise RuntimeError("the session is closed: open another one with `connect`")


class Run:
    """A job at the coordinator. Iterate over it to follow the job to its end.

    An interrupt (Ctrl-C, or the stop button of a notebook) ends the iteration and leaves the job running.

    Attributes:
        name: name of the job.

    Example:
        >>> run = session.find("churn")  # doctest: +SKIP
        >>> for progress in run:  # doctest: +SKIP
        ...     print(f"epoch {progress.epoch}, loss {progress.loss}")
    """

    def __init__(self, session: Session, run: AsyncRun) -> None:
        # Keeps the session open as long as the run is in use.
        self._session = session
        self._run = run
        self.name = run.name

    def __repr__(self) -> str:
        return f"<Run {self.name}>"

    def __iter__(self) -> Iterator[Progress]:
        """Yield the progress of the job now and after each change, until the job ends.

        Leaving the loop early does not affect the job.

        Yields:
            Snapshots of the job. The last one has a final state.

        Raises:
            JobFailedError: the job failed. The snapshot that says so comes first.
            JobStoppedError: the job was stopped. The snapshot that says so comes first.
            LostContactError: the coordinator is away, and the job continues.
            PeerError: the coordinator cannot be called.
        """
        self._session._check_open()
        return self._session._loop.iterate(self._run.watch)

    def progress(self) -> Progress:
        """Return a snapshot of the job, with all its notes.

        Raises:
            PeerError: the coordinator cannot be reached.
        """
        return self._session._call(self._run.progress)

    def wait(self, *, patience: float = 0.0) -> Progress:
        """Wait until the job has finished. An interrupt leaves the job running.

        Args:
            patience: seconds for which to try again if the coordinator is away.

        Returns:
            The last snapshot, with the loss of the result.

        Raises:
            JobFailedError: the job failed.
            JobStoppedError: the job was stopped.
            LostContactError: the coordinator is away, and the job continues.
            PeerError: the coordinator cannot be called.
        """

        async def wait() -> Progress:
            return await self._run.wait(patience=patience)

        return self._session._call(wait)

    def losses(self) -> dict[int, float]:
        """Return the loss of each round that is over, to draw it with `Model.plot`.

        Returns:
            Losses by round. A round is missing if it was void or if the coordinator keeps its loss from this
            organisation.

        Raises:
            UnknownJobError: the coordinator does not know the job.
            PeerError: the coordinator cannot be reached.
        """
        return self._session._call(self._run.losses)

    def stop(self) -> None:
        """End the job without a model. It can be resumed.

        Raises:
            AccessError: the coordinator does not let this organisation stop the job.
            ProtocolError: the job has ended already, or is about to finish.
            PeerError: the coordinator cannot be reached.
        """
        self._session._call(self._run.stop)

    def resume(self) -> None:
        """Continue a job that failed or was stopped from where it was.

        Raises:
            ProtocolError: the job is running, or has finished.
            PolicyError: the coordinator runs its maximum number of jobs.
            AccessError: the coordinator does not let this organisation resume the job.
            PeerError: the coordinator cannot be reached.
        """
        self._session._call(self._run.resume)

    def model(self, of_class: str | None = None) -> "Model":
        """Load this party's part of the model. See `Session.model`."""
        return self._run.model(of_class)


def _close(loop: BackgroundLoop, session: AsyncSession) -> None:
    if loop.is_inherited:
        return
    if loop.is_current:  # The garbage collector has found a lost session on this thread.
        loop.close_soon(session.__aexit__, None, None, None)
        return
    try:
        loop.call(session.__aexit__, None, None, None)
    finally:
        loop.release()
