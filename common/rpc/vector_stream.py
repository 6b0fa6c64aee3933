"""One call of SendVector: the chunks of one vector, in order, and no more of them than the vector has."""

from trilateral.common.base.errors import ProtocolError
from trilateral.common.pb.v1.rounds_pb2 import SendVectorRequest


class VectorStream:
    """Holds each chunk of one call to those before it. What one chunk says by itself, the codec checks.

    A call may begin anywhere in its vector, since what is acknowledged is not sent again.
    """

    def __init__(self) -> None:
        self._first: SendVectorRequest | None = None
        self._due = 0

    def check(self, chunk: SendVectorRequest) -> None:
        """Take the next chunk.

        Raises:
            ProtocolError: it does not continue the vector of the call, or goes on after its end.
        """
        if self._first is None:
            self._first = SendVectorRequest()
            self._first.CopyFrom(chunk)
            self._first.ClearField("ciphertexts")
            self._due = chunk.offset
        if _subject(chunk) != _subject(self._first):
            raise ProtocolError("chunks of two vectors came in one call")
        if chunk.offset != self._due:
            raise ProtocolError(f"ciphertexts from {chunk.offset} came where those from {self._due} were due")
        self._due += len(chunk.ciphertexts) // max(1, chunk.width)
        if self._due > chunk.total:
            raise ProtocolError(f"more ciphertexts came than the {chunk.total} that were announced")


def _subject(chunk: SendVectorRequest) -> tuple[object, ...]:
    key = chunk.key
    return chunk.job, chunk.run_id, key.round, key.attempt, chunk.kind, chunk.total, chunk.width
