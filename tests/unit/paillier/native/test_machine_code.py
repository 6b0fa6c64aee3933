"""What the compiler makes of code whose time must not depend on secrets."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.support.emulated_kernel import SOURCES


@pytest.mark.parametrize("path", ["ifma", "avx2"])
def test_a_decryption_reads_every_lane_of_its_table(path: str, tmp_path: Path) -> None:
    """It selects with bits, not with a load of some lanes only, nor with a branch that depends on a comparison."""
    assembly = tmp_path / "kernel.s"
    flags = ["-O3", "-frounding-math", "-fno-lto", "-S"]
    subprocess.run(["gcc", *flags, str(SOURCES / f"{path}.c"), "-o", str(assembly)], check=True)
    text = assembly.read_text()
    power = text[text.index("\npower:") : text.index(".size\tpower,")]
    assert "vpcmp" in power
    assert re.findall(r".*\).*\{%k\d\}|.*\b(?:v?p?maskmov|v?p?movmsk|kortest|vptest\s).*", power) == []
