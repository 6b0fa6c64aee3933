"""One key for all attacks, because keys are slow to make. It is short because no attack depends on its length."""

import pytest

from trilateral.common.paillier.keys import PrivateKey, generate_private_key


@pytest.fixture(scope="session")
def private_key() -> PrivateKey:
    return generate_private_key(512)
