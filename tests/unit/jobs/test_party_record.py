"""What a session of a job compares with the earlier sessions."""

from hashlib import blake2b
from pathlib import Path
from typing import Any

import pytest

from trilateral.common.config.dataset import DatasetConfig
from trilateral.common.jobs.party_record import settings_digest

OF_0_1_0 = (
    '{"id":"id","id_form":{"spaces":true,"unicode":true,"decimals":true,"case":false,"zeros":false},"label":null,'
    '"features":null,"exclude":[],"categorical":[],"preprocessing":{"fill":"median","missing_indicator":false,'
    '"clip":[0.01,0.99],"standardise":true,"rare":0.01,"whiten":true,"columns":{}},"jobs":["*"]}'
)
"""The settings of a dataset with all defaults, as 0.1.0 digested them."""


def test_the_settings_of_a_job_that_0_1_0_began_have_the_digest_of_then() -> None:
    inner = blake2b(OF_0_1_0.encode(), digest_size=32).digest()
    assert settings_digest(DatasetConfig(path=Path("t.csv"))) == blake2b(inner, digest_size=32).digest()


@pytest.mark.parametrize(
    "settings",
    [
        {"id": ["a", "b"]},
        {"missing": []},
        {"missing": ["NA"]},
        {"repeated_ids": "first"},
        {"preprocessing": {"constant": "refuse"}},
        {"exclude": ["a"]},
    ],
)
def test_every_change_of_the_settings_changes_their_digest(settings: dict[str, Any]) -> None:
    plain = DatasetConfig(path=Path("t.csv"))
    assert settings_digest(DatasetConfig.model_validate({"path": "t.csv", **settings})) != settings_digest(plain)
    assert settings_digest(plain) == settings_digest(plain.model_copy(update={"path": Path("u.parquet")}))
