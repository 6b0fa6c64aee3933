"""`make faults` changes the kernel's source; the changes must still fit it."""

from tests.fuzz.kernel_faults import FAULTS
from tests.support.kernel_copy import ROOT


def test_the_text_that_each_fault_changes_is_in_the_source_once() -> None:
    sources = {path: path.read_text() for path in {ROOT / fault.kernel / fault.file for fault in FAULTS}}
    lost = [each.name for each in FAULTS if sources[ROOT / each.kernel / each.file].count(each.right) != 1]
    assert lost == []
