"""Check of what the host promises to score online."""

from collections.abc import Iterator

from trilateral.common.base.errors import PolicyError
from trilateral.common.base.roles import Role
from trilateral.common.checks.finding import Finding, note, ok, problem
from trilateral.common.config.process import ProcessConfig
from trilateral.common.jobs.folder import JobFolder
from trilateral.common.jobs.policy import check_prediction


def check_online(config: ProcessConfig) -> Iterator[Finding]:
    """Check that the policy permits what `online.precompute` names, and that there is a model for it.

    Args:
        config: the configuration of the process.
    """
    for each in config.online.precompute:
        what = f"job {each.job} with dataset {each.dataset}"
        try:
            check_prediction(each.job, each.dataset, config.datasets, config.policy, Role.HOST, n_reasons=each.reasons)
        except PolicyError as error:
            yield problem("online.precompute", f"{what}: {error}")
            continue
        if JobFolder(config.state, each.job).model.exists():
            yield ok("online.precompute", f"{what} can be scored")
        else:
            yield note("online.precompute", f"{what}: there is no model yet; it is scored once the job has finished")
