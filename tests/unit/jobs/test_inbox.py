"""The inbox bounds what waits, by messages and by bytes, and lets go of every sender when it closes."""

import asyncio

import pytest

from trilateral.common.base.roles import Role
from trilateral.common.jobs import inbox as inbox_module
from trilateral.common.jobs.inbox import Inbox
from trilateral.common.protocol.messages import OutOfRange, RoundKey, RowsDone


def message(number: int) -> RowsDone:
    return RowsDone(RoundKey(1, 1), number)


async def is_held_up(task: asyncio.Task[None]) -> bool:
    for _ in range(5):
        await asyncio.sleep(0)
    return not task.done()


async def test_messages_come_out_in_order_with_their_senders() -> None:
    inbox = Inbox()
    await inbox.put(Role.HOST, message(1), 0)
    await inbox.put(Role.GUEST, message(2), 0)
    assert [await inbox.get(), await inbox.get()] == [(Role.HOST, message(1)), (Role.GUEST, message(2))]
    assert inbox.empty()


@pytest.mark.parametrize(("limit", "value", "n_bytes"), [("MAX_MESSAGES", 2, 0), ("MAX_BYTES", 20, 10)])
async def test_a_message_beyond_a_limit_waits_for_room(
    limit: str, value: int, n_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inbox_module, limit, value)
    inbox = Inbox()
    for number in (1, 2):
        await inbox.put(Role.HOST, message(number), n_bytes)
    third = asyncio.create_task(inbox.put(Role.HOST, message(3), n_bytes))
    assert await is_held_up(third)
    assert await inbox.get() == (Role.HOST, message(1))
    await asyncio.wait_for(third, 1)
    assert [(await inbox.get())[1] for _ in range(2)] == [message(2), message(3)]


async def test_a_message_larger_than_the_limit_passes_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbox_module, "MAX_BYTES", 20)
    inbox = Inbox()
    await inbox.put(Role.HOST, message(1), 1)
    large = asyncio.create_task(inbox.put(Role.HOST, message(2), 50))
    assert await is_held_up(large)
    await inbox.get()
    await asyncio.wait_for(large, 1)
    assert await inbox.get() == (Role.HOST, message(2))


async def test_a_reader_waits_for_a_message() -> None:
    inbox = Inbox()
    reader = asyncio.create_task(inbox.get())
    await asyncio.sleep(0)
    await inbox.put(Role.HOST, message(1), 0)
    assert await asyncio.wait_for(reader, 1) == (Role.HOST, message(1))


async def test_a_closed_inbox_drops_everything_and_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbox_module, "MAX_MESSAGES", 1)
    inbox = Inbox()
    await inbox.put(Role.HOST, message(1), 0)
    waiting = [asyncio.create_task(inbox.put(Role.HOST, message(number), 0)) for number in (2, 3)]
    assert await is_held_up(waiting[0])
    inbox.close()
    await asyncio.wait_for(asyncio.gather(*waiting), 1)
    await inbox.put(Role.HOST, message(4), 0)
    assert inbox.empty()


async def test_only_the_oldest_messages_of_a_kind_are_taken_together() -> None:
    inbox = Inbox()
    other = OutOfRange(RoundKey(1, 1))
    for each in (message(1), message(2), message(3), other, message(4)):
        await inbox.put(Role.HOST, each, 1)
    assert [each for _, each in inbox.take((RowsDone,), 2)] == [message(1), message(2)]
    assert [each for _, each in inbox.take((RowsDone,), 9)] == [message(3)]
    assert list(inbox.take((RowsDone,), 9)) == []
    assert (await inbox.get())[1] == other
