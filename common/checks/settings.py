"""The configuration, and what the environment makes of it."""

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
    """Say what is in force, of a configuration that can be used."""
    yield ok(str(path), f"the configuration of the {config.role} can be used")
    for keys, variable in overridden.items():
        yield note(
            "environment", f"{variable} overrides `{'.'.join(keys)}` of the file, here: see that the server has it too"
        )
    proxies = sorted({name for name in environment if name.lower() in PROXIES and environment[name]})
    if proxies:
        traces = "" if config.traces.endpoint is None else "; what sends traces does use proxies"
        yield note(
            "environment",
            f"{', '.join(proxies)} is not used for peers: they are called directly, and must be reachable so{traces}",
        )
    if config.plaintext:
        yield warning(
            "plaintext", "nothing is encrypted, and anyone on this machine can pretend to be anyone: for a trial alone"
        )
    if config.traces.endpoint is not None:
        try:
            import_exporter()
        except ConfigError as error:
            yield from faults("traces.endpoint", error)
        else:
            yield ok("traces.endpoint", "OpenTelemetry is installed; whether a collector listens there is not asked")
