"""Keys are slow to make: one for all attacks, short since none of them is about its length."""

import pytest

from trilateral.common.paillier.keys import PrivateKey, generate_private_key


@pytest.fixture(scope="session")
def private_key() -> PrivateKey:
    return generate_private_key(512)
