import pickle
import sys

import numpy as np
import pytest

from trilateral.common.base.errors import OutOfRangeError
from trilateral.common.compute.calls import Call, Hole, Raised, Sealed, TaskError
from trilateral.common.paillier.ciphertexts import Ciphertexts

SECRET = 271828


def add(*numbers: int) -> int:
    return sum(numbers)


def refuse(number: int) -> None:
    raise OutOfRangeError("too large")


def fail(number: int) -> None:
    raise ValueError(f"cannot use {number}")


def test_placed_data_goes_where_it_stands_among_the_arguments() -> None:
    call = pickle.loads(pickle.dumps(Call((add, (1, Hole(), 3, Hole())))))
    assert call(Sealed(20), Sealed(40)).value == 64


def test_no_text_shows_a_value() -> None:
    raised = Call((fail, (SECRET,)))()
    texts = [repr(Sealed(SECRET)), str(Call((add, (SECRET,)))), repr(raised), repr(raised.value)]
    assert str(SECRET) not in " ".join(texts)


def test_an_error_is_a_result() -> None:
    for function, kind in ((refuse, OutOfRangeError), (fail, TaskError)):
        raised = pickle.loads(pickle.dumps(Call((function, (1,)))()))
        assert isinstance(raised, Raised)
        assert type(raised.value) is kind


@pytest.mark.parametrize(
    "value",
    [
        np.zeros(1000, np.uint8),
        bytes(1000),
        memoryview(bytes(1000)),
        Ciphertexts(bytes(2000), 100)[5:15],
        [bytes(500), bytes(500)],
        {"a": bytes(999)},
        (np.zeros(125),),
    ],
    ids=["array", "bytes", "view", "ciphertexts", "list", "mapping", "tuple"],
)
def test_dask_learns_how_large_sealed_data_is(value: object) -> None:
    assert 1000 <= sys.getsizeof(Sealed(value)) < 1200
