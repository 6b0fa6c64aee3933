"""The asynchronous API, for programs that run an event loop of their own.

`trilateral.connect` and the rest of the synchronous API are built on this module and work in a notebook too.

Example:
    >>> import asyncio
    >>> from trilateral import aio
    >>> async def main() -> None:
    ...     async with aio.connect("guest.yaml") as session:
    ...         run = await session.train({"name": "churn", "dataset": "customers"})
    ...         async for progress in run:
    ...             print(progress.epoch, progress.loss)
    >>> asyncio.run(main())  # doctest: +SKIP
"""

from trilateral.client.asynchronous import AsyncRun, AsyncSession, connect

__all__ = ["AsyncRun", "AsyncSession", "connect"]
