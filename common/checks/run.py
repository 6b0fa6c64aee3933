"""All checks of one process, in the order in which a person would fix things."""

import os
from collections.abc import Iterator
from pathlib import Path

from trilateral.common.base.errors import ConfigError
from trilateral.common.checks.certificate import check_certificate
from trilateral.common.checks.engine import check_engine
from trilateral.common.checks.finding import Finding, faults, note
from trilateral.common.checks.listening import check_listening
from trilateral.common.checks.machine import check_machine
from trilateral.common.checks.online import check_online
from trilateral.common.checks.peers import check_peers
from trilateral.common.checks.running import check_running
from trilateral.common.checks.scratch import check_scratch
from trilateral.common.checks.settings import check_settings
from trilateral.common.checks.state_folder import check_state
from trilateral.common.checks.tables import check_tables
from trilateral.common.config.load import load_job, load_with_overrides


def check_process(path: Path, job_path: Path | None = None, *, peers: bool = True) -> Iterator[Finding]:
    """Check everything that a training needs from the process of a configuration.

    Args:
        path: the configuration file.
        job_path: a job file to check the tables and the policy against.
        peers: whether to call the two peers as well, which must be running.

    Yields:
        The findings, each as soon as it is known.
    """
    try:
        config, overridden = load_with_overrides(path)
    except ConfigError as error:
        yield from faults(str(path), error)
        yield note(str(path), "if its process is running, the process keeps the settings that it has read last")
        return
    yield from check_settings(path, config, overridden, os.environ)
    yield from check_running(config, overridden)
    job = None
    if job_path is not None:
        try:
            job = load_job(job_path)
        except ConfigError as error:
            yield from faults(str(job_path), error)
    yield from check_machine(config)
    yield from check_state(config)
    yield from check_scratch(config)
    yield from check_certificate(config)
    yield from check_engine(config)
    yield from check_listening(config)
    yield from check_tables(config, job)
    yield from check_online(config)
    if peers:
        yield from check_peers(config)
