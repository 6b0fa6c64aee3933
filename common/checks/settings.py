"""Check of the configuration, and of the environment variables that affect it."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from trilateral.common.base.errors import ConfigError
from trilateral.common.checks.finding import Finding, faults, note, ok, warning
from trilateral.common.config.process import ProcessConfig
from trilateral.common.config.settings import Keys
from trilateral.common.observe.traces import import_exporter

PROXIES = ("http_proxy", "https_proxy", "grpc_proxy", "all_proxy")


def check_settings(
    path: Path, config: ProcessConfig, overridden: Mapping[Keys, str], environment: Mapping[str, str]
) -> Iterator[Finding]:
    """Report which settings are in effect in a valid configuration.

    Args:
        path: the configuration file.
        config: the configuration.
        overridden: for each setting that an environment variable set, the name of the variable.
        environment: the environment variables.
    """
    yield ok(str(path), f"the configuration of the {config.role} is valid")
    for keys, variable in overridden.items():
        yield note(
            "environment",
            f"{variable} overrides `{'.'.join(keys)}` of the file in this shell: make sure that the server has it too",
        )
    proxies = sorted({name for name in environment if name.lower() in PROXIES and environment[name]})
    if proxies:
        traces = "" if config.traces.endpoint is None else "; only traces are sent through proxies"
        yield note(
            "environment",
            f"{', '.join(proxies)} has no effect on calls to peers, which must be reachable directly{traces}",
        )
    if config.plaintext:
        yield warning(
            "plaintext",
            "nothing is encrypted, and anyone on this machine can impersonate any role: use it only for a trial",
        )
    if config.traces.endpoint is not None:
        try:
            import_exporter()
        except ConfigError as error:
            yield from faults("traces.endpoint", error)
        else:
            yield ok("traces.endpoint", "OpenTelemetry is installed; the check does not call the collector")
