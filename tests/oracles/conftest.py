"""One key for all tests, because keys are slow to make."""

import pytest

from trilateral.common.paillier.keys import PrivateKey, generate_private_key


@pytest.fixture(scope="session")
def private_key() -> PrivateKey:
    return generate_private_key(1024)
