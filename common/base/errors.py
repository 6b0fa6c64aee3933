"""Every error the project raises on purpose.

    TrilateralError
    ├── ConfigError          a setting is wrong: the file, the key and what was expected
    ├── DataError            a party's table cannot be used: the column and the way out
    ├── PolicyError          a party's own policy refuses the job
    ├── BadKeyError          a public key that a party will not encrypt under
    ├── BadCiphertextError   a received number that is no valid ciphertext
    ├── OutOfRangeError      a value does not fit the job's fixed-point range
    ├── ProtocolError        a message that the protocol does not allow here
    └── PeerError            another process is gone, late, or has refused
        ├── StoppedError     an operator stopped the job
        └── SuspendedError   a session of a job has ended and the job has not: it goes on in another

The text of each of these is *public*: it may be shown to the other organisations. So it
names columns, counts and settings of the raiser's own side, never an ID, a label, a key or
a per-sample value. Anything else that is raised is a bug, and its text stays in the log of
the process where it happened.

What only the raiser's own organisation may read, such as the line of its file that is at fault, is a note of the
error (``add_note``): its commands print notes and its servers log them, and no message carries one.
"""


def notes(error: BaseException) -> list[str]:
    """What an error has to say to its own organisation alone."""
    return list(getattr(error, "__notes__", []))


class TrilateralError(Exception):
    """Base of all; ``str(error)`` is fit for a peer's eyes."""


class ConfigError(TrilateralError):
    """A setting that cannot be used."""


class DataError(TrilateralError):
    """A table that cannot be used."""


class PolicyError(TrilateralError):
    """A job that this party's policy refuses."""


class BadKeyError(TrilateralError):
    """A public key that must not be used."""


class BadCiphertextError(TrilateralError):
    """A number outside the ciphertext space, or the wrong count of them."""


class OutOfRangeError(TrilateralError):
    """A value outside the fixed-point range: training has diverged, or data are unscaled."""


class ProtocolError(TrilateralError):
    """A message at the wrong time, of the wrong shape, or from the wrong role."""


class PeerError(TrilateralError):
    """Another process does not answer, has lost the job, or has refused it."""


class StoppedError(PeerError):
    """An operator stopped the job."""


class SuspendedError(PeerError):
    """This session of a job has ended, since a process was restarted or stops; the job itself has not."""
