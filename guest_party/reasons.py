"""The reasons of scores at the guest: which may be asked for, and what the host says."""

from collections.abc import Sequence

from trilateral.common.base.errors import ConfigError, ProtocolError
from trilateral.common.config.dataset import MAX_REASON_LABELS, check_reason_label
from trilateral.common.config.process import MAX_REASONS
from trilateral.common.data.model.reasons import Places, decode_places


def check_n_reasons(n_reasons: int, n_host_reasons: int) -> None:
    """Check how many reasons are asked for.

    Raises:
        ConfigError: too many, or a negative number.
    """
    for name, count in (("reasons", n_reasons), ("host_reasons", n_host_reasons)):
        if not 0 <= count <= MAX_REASONS:
            raise ConfigError(f"{name}: expected 0 to {MAX_REASONS}, not {count}")


def check_labels(labels: Sequence[str]) -> tuple[str, ...]:
    """Return the host's labels.

    Raises:
        ProtocolError: there are too many, or one cannot be a label.
    """
    try:
        if len(labels) > MAX_REASON_LABELS:
            raise ValueError(f"expected at most {MAX_REASON_LABELS} labels")
        return tuple(map(check_reason_label, labels))
    except ValueError as error:
        raise ProtocolError(f"the host sends labels of reasons that cannot be used: {error}") from None


def read_codes(content: bytes, n_rows: int, n_reasons: int, labels: Sequence[str]) -> Places:
    """Return the host's reason codes of some rows as places in `labels`, shape (n_rows, n_reasons).

    Raises:
        ProtocolError: there are more or fewer, or a code has no label.
    """
    try:
        return decode_places(content, (n_rows, n_reasons), len(labels))
    except ValueError:
        raise ProtocolError(
            f"the host sends {len(content)} reason codes for {n_rows} rows: expected {n_reasons} each, of"
            f" {len(labels)} labels"
        ) from None
