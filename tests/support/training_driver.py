"""Small training problems, and a loop that answers a `Training` from them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from tests.oracles.plain import Array, LogisticProblem, Problem
from trilateral.common.base.arrays import FloatVector
from trilateral.common.config.job import Algorithm, JobConfig
from trilateral.common.protocol.batches import Batches, subsample
from trilateral.coordinator.plan import Conclusion, GivenUp, Observation, RoundPlan
from trilateral.coordinator.training import Training

Observe = Callable[[RoundPlan, FloatVector], Observation | None]


def make_job(algorithm: Algorithm, **settings: object) -> JobConfig:
    return JobConfig.model_validate({"name": "job", "dataset": "data", "algorithm": algorithm, **settings})


def make_problem(
    job: JobConfig, n_samples: int = 400, n_columns: int = 6, seed: int = 1, mixing: float = 0.3
) -> Problem:
    """Correlated columns of mean square 1 with an intercept, which the penalty leaves alone, last."""
    random = np.random.default_rng(seed)
    X = random.standard_normal((n_samples, n_columns - 1))
    X = X + mixing * X @ random.standard_normal((n_columns - 1, n_columns - 1))
    X = np.c_[(X - X.mean(0)) / X.std(0), np.ones(n_samples)]
    y = np.where(X @ random.standard_normal(n_columns) + random.standard_normal(n_samples) > 0, 1.0, -1.0)
    root = random.standard_normal((n_columns, n_columns)) / n_columns
    root[:, -1] = 0
    return problem_of(job, X, y, root.T @ root)


def problem_of(job: JobConfig, columns: Array, labels: Array, penalty: Array) -> Problem:
    """Make a problem with the loss of the job's protocol."""
    n = len(columns)
    batches = Batches.of(job, n)
    size = job.curvature_batch or n
    make = LogisticProblem if job.protocol == "shares" else Problem
    return make(
        job,
        columns,
        labels,
        penalty,
        rows=batches.rows,
        n_batches=batches.count,
        curvature_rows=lambda draw: subsample(n, size, job.seed, draw),
    )


def exact(problem: Problem) -> Observe:
    """Answer as the parties would, by the oracle's formulas."""

    def observe(plan: RoundPlan, w: FloatVector) -> Observation:
        rows = problem.rows(plan.batch)
        curvature = None
        if plan.direction is not None:
            S_H = problem.curvature_rows(plan.curvature_draw) if plan.curvature_draw > 0 else rows
            curvature = problem.hessian(S_H) @ plan.direction
        return Observation(problem.loss(w, rows), problem.gradient(w, rows) if plan.gradient else None, curvature)

    return observe


def rounded(problem: Problem, seed: int = 0, gradient_error: float = 1e-6, loss_error: float = 4e-6) -> Observe:
    """Answer like `exact`, with errors like those of sums on secret shares. At w = 0 there are none."""
    random, answer = np.random.default_rng(seed), exact(problem)

    def observe(plan: RoundPlan, w: FloatVector) -> Observation | None:
        seen = answer(plan, w)
        if seen is None or seen.gradient is None or not w.any():
            return seen
        noise = gradient_error * random.standard_normal(len(w))
        return Observation(seen.loss + loss_error * random.standard_normal(), seen.gradient + noise)

    return observe


@dataclass
class Run:
    """What happened in a training."""

    end: Conclusion | GivenUp
    plans: list[RoundPlan] = field(default_factory=list)
    points: list[FloatVector] = field(default_factory=list)
    """Where each plan was carried out; the result's point, if there is one, is the last."""
    losses: list[float | None] = field(default_factory=list)

    @property
    def notes(self) -> Sequence[str]:
        return [plan.note for plan in self.plans if plan.note is not None]

    @property
    def conclusion(self) -> Conclusion:
        assert isinstance(self.end, Conclusion), self.end
        return self.end

    @property
    def given_up(self) -> GivenUp:
        assert isinstance(self.end, GivenUp), self.end
        return self.end


def drive(
    job: JobConfig,
    n_columns: int,
    n_batches: int,
    observe: Observe,
    *,
    is_weighted: bool = False,
    start: FloatVector | None = None,
) -> Run:
    """Train as a party lives it: the weights are what the steps make of the origin."""
    training = Training(job, n_columns, n_batches, is_weighted=is_weighted, start=start)
    w: FloatVector = np.zeros(n_columns)
    plans, points, losses = [], [], []
    plan: RoundPlan | Conclusion | GivenUp = training.begin()
    while isinstance(plan, RoundPlan):
        w = w - plan.step
        seen = observe(plan, w)
        plans.append(plan)
        points.append(w)
        losses.append(None if seen is None else seen.loss)
        plan = training.observe(seen)
    if isinstance(plan, Conclusion):
        points.append(w - plan.step)
    return Run(plan, plans, points, losses)


def drive_problem(problem: Problem, observe: Observe | None = None, start: FloatVector | None = None) -> Run:
    return drive(problem.job, problem.columns.shape[1], problem.n_batches, observe or exact(problem), start=start)
