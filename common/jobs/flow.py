"""Which messages of a job wait for room, so that no queue grows with the rows, and why none of them waits for ever.

A machine makes vectors faster than a slow line or a slow peer takes them. Each of these places has a bound in bytes:

- the queue of a `Link`: `links.QUEUE_BYTES`, and one message;
- the open call of a `Link`, kept until the peer has acknowledged it: `links.CALL_BYTES`, and one message;
- the `Inbox` of the receiver: `inbox.MAX_BYTES` for each sender. A call is acknowledged when the last of its messages
  is there, so whatever is older than a call never has to be sent again;
- the pieces that a party takes for a round that it has not begun: `EARLY_BYTES`. Further ones wait in its inbox.

If the queue of a link is full, the machine that makes a vector of `WAITING` waits. The other vectors need not wait:
those that the parties exchange under `shares` are bounded by the windows of the protocol (`shares.bounds`), and what
goes to the coordinator grows with the columns and not with the rows.

**No deadlock.** A machine that waits for room takes no message, so two machines could wait for each other. Under
`paillier` the host sends u_A while the guest answers each piece. Say that the guest waits for room towards the host.
Then the host's inbox is full of the guest's answers. The host takes them, because it is idle, or computes for a while,
or waits for room itself: then the runner gives it what `is_answer` names, while its iterator is suspended. What it
yields for an answer goes to the coordinator and does not wait. So the host takes all answers in the end, whatever the
guest does. The guest gets its room, and takes further pieces. So the host gets its room too.

The other waits have no circle either. The coordinator waits for a party while it deals, and no party ever waits for
room towards the coordinator. A party takes the messages of the coordinator whether or not the other party has sent it
too much too early, because each sender has a queue of its own in the inbox. A round that overtakes another empties the
queues of the links, and so ends each wait.
"""

from trilateral.common.protocol.messages import ElementPiece, HoldoutScores, Kind, Message, Piece, VectorPiece

WAITING = frozenset({Kind.DEALT, Kind.SCORES, Kind.SCORE_CHANGE, Kind.RESIDUAL, Kind.TOTAL_CHANGE})
"""Vectors that wait for room, and that grow with the rows."""
ANSWERS = frozenset({Kind.RESIDUAL, Kind.TOTAL_CHANGE})
"""Vectors that the receiver takes while it waits itself. It sends their sender nothing for them."""
EARLY_BYTES = 4 * 1024 * 1024
"""Bytes of ciphertexts that a machine is given for a round that it has not begun."""


def waits_for_room(message: Message) -> bool:
    """Return whether a message waits while the queue of its link is full."""
    return isinstance(message, HoldoutScores) or (isinstance(message, Piece) and message.kind in WAITING)


def is_answer(message: Message) -> bool:
    """Return whether a machine takes a message while it waits for room."""
    return isinstance(message, Piece) and message.kind in ANSWERS


def size_of(message: Message | None) -> int:
    """Return the bytes that a message counts in a queue. Only vectors count, and the scores of hold-out rows."""
    match message:
        case HoldoutScores():
            return message.scores.nbytes
        case VectorPiece() | ElementPiece():
            return message.n_bytes
        case _:
            return 0
