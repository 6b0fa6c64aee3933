"""The file of what a party gets to know in a bins job: JSON that can be read without this project."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field
from pydantic_core import from_json

from trilateral.common.base.errors import ConfigError, DataError
from trilateral.common.base.files import write_whole
from trilateral.common.base.permissions import explain
from trilateral.common.base.roles import Role
from trilateral.common.config.job import JobConfig
from trilateral.common.config.settings import Settings, parse_settings
from trilateral.common.data.preprocessing.bins import AnyBinned, Bin


class HostColumn(Settings):
    """One of the host's columns, as the guest sees it: without its name and the bounds of its bins."""

    bins: list[Bin]
    """The merged bins. The host's order of numbers is kept; missing values come last if they have a bin of their
    own."""


class BinsFile(Settings):
    """What a party gets to know in a bins job."""

    format: Literal[1] = 1
    """The version of the file format."""
    role: Role
    """The party."""
    job: JobConfig
    """The job that counted."""
    run_id: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
    """The run of the job, hexadecimal."""
    table: str
    """SHA-256 of the table's file, as ``sha256sum`` prints it."""
    ids: str
    """Digest of the list of common IDs, hexadecimal."""
    n_train: int
    """Training rows, which alone were counted."""
    train: str
    """SHA-256 of their places among the common rows, hexadecimal."""
    columns: list[Annotated[AnyBinned, Field(discriminator="kind")]] = Field(default_factory=list)
    """The party's own columns in bins. At the host there are none if the guest released no counts."""
    left_out: dict[str, str] = Field(default_factory=dict)
    """The party's columns that have no bins: the reason by name."""
    host_columns: list[HostColumn] = Field(default_factory=list)
    """Guest only: the host's columns, in an order that the host knows."""


def save_bins(path: Path, bins: BinsFile) -> None:
    """Write the file atomically, readable by this user only.

    Raises:
        OSError: the file cannot be written.
    """
    write_whole(path, bins.model_dump_json(indent=2) + "\n")


def load_bins(path: Path) -> BinsFile:
    """Read a file that `save_bins` wrote.

    Raises:
        DataError: the file cannot be read, or is not a file of this format.
    """
    try:
        content = from_json(path.read_bytes())
    except FileNotFoundError:
        raise DataError(
            f"there is no file {path}: name a bins job that has finished, and use the configuration of the process that"
            " took part in it"
        ) from None
    except OSError as error:
        raise DataError(f"the file {path} cannot be read: {explain(error, path)}") from None
    except ValueError:
        raise DataError(f"{path} is not a file of a bins job: it is not JSON") from None
    if not isinstance(content, dict) or content.get("format") != 1:
        raise DataError(f"{path} is not a file of a bins job that this version can read: its `format` is not 1")
    try:
        return parse_settings(BinsFile, content, path.name)
    except ConfigError as error:
        raise DataError(f"{path} is not a file of a bins job that this version can read: {error}") from None
