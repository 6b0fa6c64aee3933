"""The measured constants of the cost model. `benchmarks/calibrate.py` measures them and writes the file."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

import yaml
from pydantic import Field

from trilateral.common.base.errors import ConfigError
from trilateral.common.base.permissions import explain
from trilateral.common.config.settings import Settings, parse_settings

MEASURED = Path(__file__).with_name("constants.yaml")
"""The constants that this release comes with."""

Count = Literal[
    "once",
    "rows",
    "values",
    "own_values",
    "own_squares",
    "group_values",
    "dealt",
    "dealt_ahead",
    "products",
    "ciphertexts",
    "sums",
    "ids",
    "fine_values",
]
"""What a constant is multiplied by: see `Workload.counts` and `Counting.counts`."""
Terms = dict[Count, Annotated[float, Field(ge=0, allow_inf_nan=False)]]
"""Constants by what they are multiplied by. Their sum is the quantity."""


class ProtocolConstants(Settings):
    """The constants of one protocol. Seconds are those of one processor."""

    party_setup: Terms
    """Seconds of a party before the first round and after the last one."""
    party_round: Terms
    """Seconds of a party in a round."""
    coordinator_setup: Terms
    coordinator_round: Terms
    party_memory: Terms
    """Megabytes of a party's memory besides its arrays."""
    coordinator_memory: Terms
    """Megabytes."""
    setup_wait: float = Field(ge=0, allow_inf_nan=False)
    """Seconds of a job in which all processes wait, for messages and files."""
    round_wait: float = Field(ge=0, allow_inf_nan=False)
    """The same for a round."""
    setup_overlap: float = Field(ge=1, allow_inf_nan=False)
    """How much longer the setup takes than if the processes divided their work evenly among all processors."""
    round_overlap: float = Field(ge=1, allow_inf_nan=False)
    """The same for a round."""


class AlignmentConstants(Settings):
    """The constants of finding the common rows."""

    party: Terms
    """Seconds of a party, of one processor."""
    party_memory: Terms
    """Megabytes."""
    wait: float = Field(ge=0, allow_inf_nan=False)
    overlap: float = Field(ge=1, allow_inf_nan=False)
    """See `ProtocolConstants`."""


class CountingConstants(Settings):
    """The constants of a bins job. Seconds are those of one processor."""

    party_setup: Terms
    """Seconds of a party to read its table and divide its columns into bins."""
    host_count: Terms
    guest_count: Terms
    coordinator_count: Terms
    """Seconds of each process to count."""
    coordinator_setup: Terms
    party_memory: Terms
    """Megabytes of a party's memory besides its arrays."""
    coordinator_memory: Terms
    """Megabytes."""
    wait: float = Field(ge=0, allow_inf_nan=False)
    """Seconds of a job in which all processes wait, for messages and files."""
    overlap: float = Field(ge=1, allow_inf_nan=False)
    """How much longer the job takes than if host and guest worked at the same time all along."""


class Constants(Settings):
    """What `benchmarks/calibrate.py` has measured on one machine."""

    machine: str
    """The processor, for people."""
    measured: str
    """The date."""
    arithmetic: Literal["ifma", "avx2", "gmpy2"]
    """The path of the kernel with which the encrypted arithmetic was measured."""
    paillier: ProtocolConstants
    shares: ProtocolConstants
    counting: CountingConstants
    alignment: AlignmentConstants


def load_constants(path: Path = MEASURED) -> Constants:
    """Read a file of constants.

    Raises:
        ConfigError: the file cannot be read, or is no file of constants; the text names each wrong entry.
    """
    try:
        content = yaml.safe_load(path.read_text())
    except OSError as error:
        raise ConfigError(f"the constants {path} cannot be read: {explain(error, path)}") from None
    except (yaml.YAMLError, UnicodeDecodeError):
        raise ConfigError(f"{path} is not YAML: name a file that benchmarks/calibrate.py has written") from None
    if not isinstance(content, Mapping):
        raise ConfigError(f"{path} has no constants: name a file that benchmarks/calibrate.py has written")
    return parse_settings(Constants, content, str(path))


def total(terms: Terms, counts: Mapping[str, float]) -> float:
    """Return a quantity: the sum of its constants, each times its count; a count that is not given is 0."""
    return sum(constant * counts.get(name, 0) for name, constant in terms.items())
