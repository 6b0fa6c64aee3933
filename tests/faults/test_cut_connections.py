"""Connections that break in the middle of a stream do not change the model."""

import random
from pathlib import Path

import pytest

from tests.faults.networks import behind_proxies, deck_of_cuts
from tests.support.tcp_proxy import Cut
from tests.support.three_servers import DATASET, PROTOCOLS, Protocol, check_model, under
from trilateral.common.config.job import JobConfig, Sqn

JOB = JobConfig(
    name="cut", dataset=DATASET, key_bits=512, algorithm=Sqn(interval=4), batch=24, epochs=12, tolerance=0.0
)
CUTS = 7 * [Cut.RESET] + 7 * [Cut.CLOSE] + [Cut.SWALLOW]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_connections_cut_in_mid_stream_do_not_change_the_model(protocol: Protocol, tmp_path: Path) -> None:
    job = under(protocol, JOB)
    draw_cut = deck_of_cuts(random.Random(1), CUTS, mean_bytes=5_000)
    with behind_proxies(tmp_path, draw_cut, peer_timeout=6) as (network, proxies):
        network.train(job)

    assert sum(proxy.cuts.total() for proxy in proxies.values()) == len(CUTS)
    check_model(network.configs, job)
