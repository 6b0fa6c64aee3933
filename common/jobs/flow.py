"""Which messages of a job wait for room, why no queue grows with the rows, and why nothing waits for ever.

A machine can make vectors faster than a slow line or a slow peer takes them. Each of these places has a bound in bytes:

- the open call of a `Link`, kept until the peer has acknowledged it: `links.CALL_BYTES`, and one message. A call is
  acknowledged when the last of its messages is in the receiver's inbox. So what is older than a call is never sent
  again, and is not kept;
- the `Inbox` of the receiver: `inbox.MAX_BYTES`, and one message of each open call;
- the queue of a `Link`. Vectors between the parties are bounded by the windows of the protocol: a party sends no more
  rows than a window beyond those that the other has answered (`protocol.bounds`, `shares.bounds`). So a party never
  waits for room with them. Vectors to the coordinator grow with the columns and not with the rows. All others, which
  `waits_for_room` names, wait while the queue has `links.QUEUE_BYTES`;
- the pieces of a round that a party has not begun, which its intake keeps: a window as well.

**No deadlock.** A machine that waits for room takes no message. Two machines that wait for each other would wait for
ever. But whoever waits for room waits for a machine that does not:

- the coordinator waits for a party while it deals. A party never waits for room towards the coordinator;
- before there is a machine, a party waits for the other one while it sends the roles of rows. The other one waits for
  nothing but these;
- the host waits only for the guest, while it sends scores of hold-out rows. The guest never waits for room.

So the guest always takes what comes, then the host does, and then the coordinator does. A window is no wait: a party
whose window is full takes messages, and goes on when an answer comes. The other party answers each piece without
waiting for room, so the answer comes. A round that overtakes another empties the queues of the links.
"""

from trilateral.common.protocol.messages import ElementPiece, HoldoutScores, Kind, Message, VectorPiece
from trilateral.common.protocol.row_roles import RolePiece


def waits_for_room(message: Message) -> bool:
    """Return whether a message waits while the queue of its link is full."""
    return isinstance(message, HoldoutScores) or (isinstance(message, ElementPiece) and message.kind is Kind.DEALT)


def size_of(message: Message | None) -> int:
    """Return the bytes that a message counts in a queue. Only what grows with the rows counts."""
    match message:
        case HoldoutScores():
            return message.scores.nbytes
        case VectorPiece() | ElementPiece():
            return message.n_bytes
        case RolePiece():
            return len(message.roles)
        case _:
            return 0
