"""Servers of other versions in this process. A task passes its version on to the tasks that it starts."""

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from contextvars import ContextVar
from typing import Any

import pytest

from tests.support.three_servers import serving
from trilateral.common.base.roles import Role
from trilateral.common.config.process import ProcessConfig
from trilateral.common.process import description
from trilateral.common.process import job_client as client
from trilateral.common.process.job_client import JobClient
from trilateral.common.rpc import access, calls, versions
from trilateral.common.rpc.versions import PROTOCOL, Version

NEWER = Version(PROTOCOL + 1, "99.0")
OLDER = Version(None)
"""A release without versions, which neither sends nor checks them."""

OWN = versions.own_version()
_speaks: ContextVar[Version] = ContextVar("speaks", default=OWN)


def let_versions_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    """Patch the project so that each server speaks the version of `speaking`."""

    def only_new(function: Any) -> Any:
        return lambda *arguments: () if _speaks.get() == OLDER else function(*arguments)

    for module in (description, versions):
        monkeypatch.setattr(module, "own_version", _speaks.get)
    for module in (access, versions):
        monkeypatch.setattr(module, "version_metadata", only_new(versions.version_metadata))
    monkeypatch.setattr(access, "check_caller", only_new(versions.check_caller))
    for user in (calls, client):
        monkeypatch.setattr(user, "check_answer", only_new(versions.check_answer))


@contextmanager
def speaking(version: Version) -> Iterator[None]:
    before = _speaks.set(version)
    try:
        yield
    finally:
        _speaks.reset(before)


@asynccontextmanager
async def serving_versions(configs: dict[Role, ProcessConfig], others: dict[Role, Version]) -> AsyncIterator[JobClient]:
    """Serve all of `configs`, each role of `others` with its own version; yield a client of this version."""
    async with AsyncExitStack() as stack:
        clients = {}
        for role, config in configs.items():
            with speaking(others.get(role, OWN)):
                clients[role] = await stack.enter_async_context(serving({role: config}))
        yield clients.get(Role.COORDINATOR) or next(iter(clients.values()))
