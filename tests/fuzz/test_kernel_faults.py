"""`make faults` changes the kernel's source; the changes must still fit it."""

from tests.fuzz.kernel_faults import FAULTS
from tests.support.kernel_copy import PAILLIER, ROOT


def test_the_text_that_each_fault_changes_is_in_the_source_once() -> None:
    sources = {fault.file: (ROOT / PAILLIER / fault.file).read_text() for fault in FAULTS}
    assert [fault.name for fault in FAULTS if sources[fault.file].count(fault.right) != 1] == []
