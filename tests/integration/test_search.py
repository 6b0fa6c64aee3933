"""A search over penalties over three servers: one job, a table at the guest alone, and exact zeros in both parts."""

from io import StringIO
from pathlib import Path

from rich.console import Console

from tests.support.three_servers import DATASET, make_configs, serving, train_over_localhost, write_tables
from trilateral.cli.results import print_part
from trilateral.common.base.roles import PARTIES, Role
from trilateral.common.config.job import JobConfig, PenaltyPath
from trilateral.common.data.model.model_file import load_model
from trilateral.common.jobs.account import training_equations
from trilateral.common.jobs.folder import JobFolder
from trilateral.common.jobs.ledger import Ledger
from trilateral.common.pb.v1.jobs_pb2 import JOB_STATE_FINISHED
from trilateral.common.process.job_client import JobClient

JOB = JobConfig(
    name="search",
    dataset=DATASET,
    protocol="shares",
    l1=0.3,
    folds=3,
    path=PenaltyPath(points=4, smallest=0.01),
    one_standard_error=True,
)


async def test_the_guest_alone_has_the_table_and_the_ledgers_count_the_search(tmp_path: Path) -> None:
    write_tables(tmp_path, n_rows=1500)
    configs = make_configs(tmp_path)
    async with serving(configs) as client, JobClient(configs[Role.GUEST]) as of_guest:
        status = await train_over_localhost(client, JOB)
        at_host, at_guest = [(await each.status(JOB.name)).notes for each in (client, of_guest)]
    assert status.state == JOB_STATE_FINISHED, status.detail
    assert (status.fits_done, status.n_fits) == (12, 13)
    assert sum("mean log loss on the folds" in note for note in at_guest) == 4
    assert not [note for note in at_host if "mean log loss" in note]

    models = {role: load_model(JobFolder(configs[role].state, JOB.name).model) for role in PARTIES}
    guest, host = models[Role.GUEST], models[Role.HOST]
    assert [(each.l1, each.l2) for each in guest.search] == [(each.l1, each.l2) for each in JOB.penalties]
    assert [each.chosen for each in guest.search].count(True) == 1
    assert not host.search
    assert "chosen" not in host.reason
    n_terms = sum(weight != 0 for model in models.values() for weight in model.standardised_weights.values())
    assert 0 < n_terms <= sum(len(model.weights) for model in models.values())

    counted = Ledger(configs[Role.HOST].state, Role.HOST).entry(DATASET)
    shape = host.data.n_train, len(host.training_weights)
    assert counted.trainings == 1
    assert counted.equations == training_equations(JOB, shape, len(guest.training_weights), None)

    shown = StringIO()
    print_part(guest, Console(file=shown, width=200))
    assert "cross-validation with 3 folds" in shown.getvalue()
