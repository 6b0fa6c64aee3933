"""Every error that the project raises on purpose.

    TrilateralError
    ├── ConfigError          a setting is wrong; the text names the file, the key and the expected value
    ├── DataError            a party's table cannot be used; the text names the column and the remedy
    ├── PolicyError          a party's own policy refuses the job
    ├── BadKeyError          a public key under which a party refuses to encrypt
    ├── BadCiphertextError   a received number is not a valid ciphertext
    ├── OutOfRangeError      a value does not fit the job's fixed-point range
    ├── ProtocolError        the protocol does not allow this message here
    └── PeerError            another process is gone, is late or has refused
        └── SuspendedError   a session of a job has ended, but the job continues in another session

The text of each of these errors is *public*: other organisations may see it. The text therefore names columns, counts
and settings of the raiser's own side. It never names an ID, a label, a key or a value of a row. Any other exception is
a bug, and its text stays in the log of the process that raised it.

Details for the raiser's own organisation, such as the faulty line of its file, are notes of the error (``add_note``).
Commands of that organisation print the notes and its servers log them. No message carries a note.
"""


def notes(error: BaseException) -> list[str]:
    """Return the notes of an error, which only the raiser's own organisation may read."""
    return list(getattr(error, "__notes__", []))


class Counted(int):
    """A number of things, which a text names with the words for one or for several.

    Example:
        >>> [f"{Counted(n):row is|rows are} empty" for n in (1, 1000)]
        ['1 row is empty', '1,000 rows are empty']
    """

    def __format__(self, words: str) -> str:
        """Return the number, followed by one of two alternatives if there are any."""
        if not words:
            return str(int(self))
        one, _, several = words.partition("|")
        return f"{int(self):,} {one if self == 1 else several}"


class TrilateralError(Exception):
    """Base class of all errors raised on purpose. ``str(error)`` is safe to show to a peer."""


class ConfigError(TrilateralError):
    """A setting cannot be used."""


class DataError(TrilateralError):
    """A table cannot be used."""


class PolicyError(TrilateralError):
    """This party's policy refuses the job."""


class BadKeyError(TrilateralError):
    """A public key must not be used."""


class BadCiphertextError(TrilateralError):
    """A number lies outside the ciphertext space, or the count of ciphertexts is wrong."""


class OutOfRangeError(TrilateralError):
    """A value lies outside the fixed-point range: training has diverged, or the data are not scaled."""


class ProtocolError(TrilateralError):
    """A message came at the wrong time, in the wrong shape or from the wrong role."""


class PeerError(TrilateralError):
    """Another process does not answer, has lost the job or has refused it."""


class StoppedError(PeerError):
    """An operator stopped the job."""


class SuspendedError(PeerError):
    """This session of a job has ended because a process stopped or restarted. The job itself has not ended."""
