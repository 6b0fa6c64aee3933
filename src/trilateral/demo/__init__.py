"""A trial on one machine: three processes, two tables that ship with scikit-learn, and a job under each protocol."""

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from trilateral.common.base.roles import Role
from trilateral.common.config.job import JobConfig
from trilateral.common.config.load import load_job, load_process_config
from trilateral.common.config.process import ProcessConfig
from trilateral.common.config.settings import parse_settings
from trilateral.common.trial.localhost import LocalProcesses, free_addresses
from trilateral.demo.files import JOB, DemoFiles, write_files
from trilateral.demo.tables import DATASET


class Demo:
    """A host, a guest and a coordinator on this machine, each a process of its own.

    The data are 569 patients of the breast cancer table that ships with scikit-learn. Each party has 15 of the columns,
    and the guest has the diagnosis too. The processes talk over TLS with certificates made for the trial.

    Args:
        folder: folder for tables, configurations, logs and models. An earlier demo in it is replaced.
        key_bits: bits of the Paillier modulus. A small key makes a trial faster and is not secure.
        algorithm: how to train.

    Raises:
        ConfigError: the size of the key is not possible, or the folder cannot be used.

    Example:
        >>> import trilateral
        >>> with trilateral.Demo("demo-result") as demo:  # doctest: +SKIP
        ...     with trilateral.connect(demo.guest) as session:
        ...         final = session.train(demo.job).wait()
        ...         print(final.loss)
    """

    def __init__(
        self,
        folder: str | os.PathLike[str] = "demo-result",
        *,
        key_bits: int = 2048,
        algorithm: Literal["lbfgs", "sqn", "sgd"] = "lbfgs",
    ) -> None:
        parse_settings(JobConfig, {"name": JOB, "dataset": DATASET, "key_bits": key_bits}, "demo")
        self._folder = Path(folder)
        self.files: DemoFiles = write_files(self._folder, free_addresses(), key_bits, algorithm)
        self._processes = LocalProcesses(self.files.configs, self.files.log_files)

    def __repr__(self) -> str:
        return f"<Demo in {self._folder}>"

    def start(self) -> Self:
        """Start the three processes and wait until they serve.

        Returns:
            The demo itself.

        Raises:
            PeerError: a process does not start. `log_tails` tells why.
        """
        _outside_loop(self._processes.__enter__)
        return self

    def stop(self) -> None:
        """Stop the three processes. The files stay."""
        self._processes.__exit__(None, None, None)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def host(self) -> ProcessConfig:
        """Configuration of the host, for `trilateral.connect`."""
        return self._config(Role.HOST)

    @property
    def guest(self) -> ProcessConfig:
        """Configuration of the guest, for `trilateral.connect`."""
        return self._config(Role.GUEST)

    @property
    def coordinator(self) -> ProcessConfig:
        """Configuration of the coordinator, for `trilateral.connect`."""
        return self._config(Role.COORDINATOR)

    @property
    def job(self) -> JobConfig:
        """The job of the demo, for `Session.train`."""
        return load_job(self.files.job)

    @property
    def job_on_shares(self) -> JobConfig:
        """The same job with `protocol: shares`. In place of `sqn`, which shares do not have, it trains with `lbfgs`."""
        return load_job(self.files.job_on_shares)

    def log_tails(self) -> str:
        """Return the last lines of each process's log."""
        return self._processes.log_tails()

    def _config(self, role: Role) -> ProcessConfig:
        return load_process_config(self.files.config(role), {})


def _outside_loop(function: Callable[[], object]) -> None:
    """Call a function that runs an event loop of its own, even where a loop runs already, as in a notebook."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        function()
    else:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(function).result()
