"""The job: what is trained and how. One YAML file, the same for all three organisations."""

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, ValidationError, model_validator

from trilateral.common.config.settings import JobName, Settings, settings_error


class Sgd(Settings):
    """Stochastic gradient descent, the paper's baseline: round k takes the step w <- w - eta_k g."""

    name: Literal["sgd"] = "sgd"
    """Selects this algorithm."""
    learning_rate: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.15
    """The base learning rate eta; `decay` lowers it from round to round."""
    decay: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """How fast the learning rate falls: round k, counted from 1, uses eta_k = `learning_rate` / sqrt(1 + `decay` k).
    The default, 0, keeps it constant."""


class Sqn(Settings):
    """The paper's stochastic quasi-Newton method: round k takes the step w <- w - eta_k H g.

    H approximates the inverse Hessian. It is built from curvature pairs: a difference between two averages of the
    weights, and the product of the Hessian with that difference.
    """

    name: Literal["sqn"] = "sqn"
    """Selects this algorithm."""
    learning_rate: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.15
    """The base learning rate eta; `decay` lowers it from round to round."""
    decay: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.1
    """How fast the learning rate falls: round k, counted from 1, uses eta_k = `learning_rate` / sqrt(1 + `decay` k).
    0 keeps it constant."""
    first_learning_rate: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """The learning rate that replaces `learning_rate` until the first curvature pair, while H is the identity. By
    default `learning_rate` applies from the start."""
    memory: Annotated[int, Field(ge=1, le=100)] = 10
    """How many of the latest curvature pairs H is built from (M in the paper)."""
    interval: Annotated[int, Field(ge=1, le=1000)] = 4
    """Rounds from one curvature pair to the next, and also the rounds over which the weights are averaged (L in the
    paper)."""
    curvature_batch: Annotated[int, Field(ge=1)] | None = None
    """Training rows in the batch of a curvature pair, drawn anew for each pair (|S_H| in the paper). By default a pair
    uses the batch of its round."""


class Lbfgs(Settings):
    """Limited-memory BFGS on the whole training set. It needs no learning rate.

    With `paillier`, its steps are exact, because the Taylor loss is quadratic. With `shares`, they are unit steps.
    """

    name: Literal["lbfgs"] = "lbfgs"
    """Selects this algorithm."""
    memory: Annotated[int, Field(ge=1, le=100)] = 10
    """How many of the latest curvature pairs the approximation of the inverse Hessian is built from."""


MAX_PENALTIES = 100
"""Maximum number of penalties of a job."""

INFERENCE_TOLERANCE = 1e-6
"""Default of `JobConfig.tolerance` with `inference`. From there, two steps of Newton's method lead to the maximum on
the credit data sets. From 1e-5, a third one is sometimes needed."""

MAX_INFERENCE_TOLERANCE = 1e-4
"""With `inference`. The steps of Newton's method begin near the maximum, where the gradient is small and the loss is
known: see `shares.information`. From 1e-3, the maximum is often too far away for them."""


class Penalty(Settings):
    """Strengths of the penalty l1 ||beta||_1 + l2/2 ||beta||^2 of one fit."""

    l1: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """Strength of the L1 part; see `JobConfig.l1`."""
    l2: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """Strength of the L2 part; see `JobConfig.l2`."""


class PenaltyPath(Settings):
    """Penalties from strong to weak, in one proportion of `l1` to `l2`, on a geometric scale."""

    points: Annotated[int, Field(ge=2, le=MAX_PENALTIES)] = 10
    """Number of penalties."""
    smallest: Annotated[float, Field(gt=0, lt=1)] = 1e-3
    """The weakest penalty, as a share of the strongest one, which has the job's own `l1` and `l2`."""


ProtocolName = Literal["paillier", "shares"]
"""How the parties compute together; see `JobConfig.protocol`."""
_NO_CIPHERTEXT = "`shares` has no ciphertexts"
PAILLIER_OPTIONS = dict.fromkeys(("key_bits", "cipher", "slots"), _NO_CIPHERTEXT)
"""Options of `JobConfig` that only the Paillier protocol has, and the reason."""
_OWN_STEPS = (
    "under `paillier` each party sees its own steps in each fit, and those of two fits differ by sums over a fold"
)
SHARES_OPTIONS = {
    "max_score": "the loss of `paillier` is quadratic, whatever the scores are",
    "inference": "the loss of `paillier` is not a likelihood, so there are no standard errors",
    "l1": "under `paillier` each party sees its own steps, which would show which weights are 0",
    "folds": _OWN_STEPS,
    "fold_by": _OWN_STEPS,
    "choose": _OWN_STEPS,
    "path": _OWN_STEPS,
    "search": _OWN_STEPS,
    "one_standard_error": _OWN_STEPS,
    "classes": "under `paillier` each class takes a job of its own, with a label of two values",
}
"""Options of `JobConfig` that only the protocol on shares has, and the reason."""

Task = Literal["train", "bins"]
"""What a job does; see `JobConfig.task`."""

Algorithm = Annotated[Sgd | Sqn | Lbfgs, Field(discriminator="name")]


class JobConfig(Settings):
    """One training job: what is trained, and how.

    Each option is a keyword argument and an attribute. Only `name` and `dataset` are required. A wrong option raises
    `ConfigError`, with a line for each problem. A job cannot be changed; `job.model_copy(update={"name": "second"})`
    returns a copy with other options.

    Example:
        >>> job = JobConfig(name="churn", dataset="customers", l2=0.001)
        >>> job.holdout
        0.2
    """

    name: JobName
    """Name of the job and of its folder at each organisation: 1 to 64 letters, digits, `.`, `_` or `-`, beginning with
    a letter or digit."""
    dataset: JobName
    """Name of the table to train on. Each party looks it up under `datasets` in its own configuration."""
    aligned: bool = False
    """Whether both tables already hold exactly the same IDs, which the parties then only verify. By default they first
    find their common rows by private set intersection."""
    protocol: ProtocolName = "paillier"
    """How the parties compute together. `paillier`, the paper's protocol, trains the Taylor form of the logistic loss
    on ciphertexts. `shares` trains the logistic loss itself on secret shares, in far less time."""
    task: Task = "train"
    """What the job does: train a model, or only count the labels in the bins of the host's columns (`bins`), for which
    only `protocol: shares`, `holdout`, `seed` and `aligned` matter."""
    algorithm: Algorithm = Lbfgs()
    """The optimiser, selected by its `name`: `lbfgs`, `sqn` or `sgd`, with that algorithm's own options. The default,
    `lbfgs`, needs no tuning."""
    batch: Annotated[int, Field(ge=1)] | Literal["all"] = "all"
    """Training rows in a round (|S| in the paper), or `all`. Each epoch is divided into equal batches of at least this
    many rows. `lbfgs` requires `all`."""
    epochs: Annotated[int, Field(ge=1, le=100_000)] = 30
    """The maximum number of epochs, each a pass over all training rows."""
    tolerance: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1e-5
    """When to stop early, as a difference of the loss. `sgd` and `sqn` stop when the mean losses of two consecutive
    epochs differ by less than this. `lbfgs` stops when its loss is estimated to be within this of the minimum; early
    in a training that estimate is only good for whitened columns. With `inference`, the default is 1e-6, from
    where two steps of Newton's method lead to the maximum of the likelihood."""
    l2: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """Strength lambda of the L2 penalty, lambda/2 ||beta||^2, where beta are the weights of the standardised features.
    The default, 0, means no penalty. The intercept is never penalised."""
    l1: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """With `shares`: strength of the L1 penalty, l1 ||beta||_1, which sets weights to exactly 0. Together with `l2` it
    is the elastic net. The parties then do not whiten their columns. The default, 0, means no such penalty."""
    folds: Annotated[int, Field(ge=2, le=20)] | None = None
    """With `shares`: number of folds of a cross-validation. The job fits each penalty once for each fold, on the
    training rows outside of it, chooses the penalty with the lowest mean log loss on the folds, and trains on all
    training rows with that. By default there is one training and no fold."""
    fold_by: Literal["random", "label", "group", "time"] = "random"
    """How rows get into folds: at random by the seed; at random so that all folds have the same share of each label,
    by the guest (`label`); so that rows of one group are in one fold (`group`); or in the order of time, each fold one
    period (`time`). `group` and `time` need the `folds` of the dataset at one party. All but `random` need
    `policy.share_folds` of the party that decides. Requires `folds`."""
    choose: Literal["log_loss", "auc"] = "log_loss"
    """What the folds compare the penalties by: the lowest mean log loss, or the highest mean AUC. For `auc`, the guest
    is told the score of each training row once for each penalty, which `policy.share_fold_scores` of the host permits.
    Requires `folds`."""
    path: PenaltyPath | None = None
    """The penalties that the folds compare: a path from the job's `l1` and `l2` down. Requires `folds`. By default the
    folds measure the job's own `l1` and `l2` alone."""
    search: Annotated[list[Penalty], Field(min_length=1, max_length=MAX_PENALTIES)] | None = None
    """The penalties that the folds compare, as a list such as `[{l2: 0.1}, {l1: 0.01, l2: 0.001}]`, in place of `path`,
    `l1` and `l2`. Requires `folds`."""
    one_standard_error: bool = False
    """Whether to choose the strongest penalty whose mean log loss is within one standard error of the lowest one, in
    place of the penalty with the lowest loss. Requires `path` or `search`."""
    intercept: bool = True
    """Whether the model has an intercept. The guest adds it as a column of ones, which the penalty leaves out."""
    holdout: Annotated[float, Field(ge=0, lt=1)] | Literal["column"] = 0.2
    """Share of the rows that are kept out of training. On these rows the guest measures and calibrates the model at the
    end. 0 trains on all rows; there are then no quality figures, and the calibration knows only the rate of positive
    rows. `column` lets a column of one party decide which rows train and which evaluate the model: see the `split` of
    its dataset."""
    evaluate_every: Annotated[int, Field(ge=1)] | None = None
    """Epochs between evaluations on the hold-out rows during training. By default the only evaluation is at the
    end."""
    patience: Annotated[int, Field(ge=1)] | None = None
    """Training stops after this many evaluations in a row that do not lower the hold-out log loss by more than
    `tolerance`. The result is then the best evaluated model. Requires `evaluate_every`. By default evaluations do not
    affect training."""
    start_from: JobName | None = None
    """With `shares`: name of an earlier job with the same features, on the same or on other rows. Each party starts
    from its part of that job's model, which saves rounds. The coordinator learns these weights. By default the training
    starts at zero."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Seed of the hold-out split and of the batches. It has no effect on cryptographic randomness."""
    key_bits: Annotated[int, Field(ge=256, le=8192, multiple_of=2)] = 2048
    """Size of the Paillier modulus n in bits. Each party's policy sets the minimum that it accepts. Not for
    `shares`."""
    cipher: Literal["packed", "reference"] = "packed"
    """The implementation of the encryption. `packed` puts several values into one ciphertext. `reference` uses the
    operations of the phe library, one value for each ciphertext: slow, meant as an independent check. Not for
    `shares`."""
    slots: Annotated[int, Field(ge=1)] | None = None
    """Values in one ciphertext. By default as many as fit. Not for `shares`."""
    max_score: Literal[8, 12, 24] = 12
    """With `shares`: the loss is that of the logistic regression for scores (log-odds) up to this size. A row beyond it
    counts with a loss that is still convex, but is no longer the logistic one. A larger range takes more time and
    traffic."""
    inference: bool = False
    """With `shares`: whether each party gets the standard errors, p-values and confidence intervals of its own terms,
    and the guest the deviance and likelihood-ratio test of the model. Requires `lbfgs`, no penalty, `folds` or
    `patience`, and `policy.share_inference` at both parties."""

    classes: Annotated[int, Field(ge=3, le=20)] | None = None
    """With `shares`: the number of values of the label, if there are more than two. The guest's dataset lists them in
    `label.classes`. The job then fits a model for each class against all others, one after the other, on the same rows
    and in the same session. By default the label has two values."""

    if not TYPE_CHECKING:  # A type checker derives the arguments from the fields.

        def __init__(self, /, **options: Any) -> None:
            try:
                super().__init__(**options)
            except ValidationError as error:
                raise settings_error(JobConfig, options, error, "job") from None

        # Says that `model_validate` need not call this method, whose error has no place in a larger one.
        __init__.__pydantic_base_init__ = True

    @property
    def loss_name(self) -> str:
        """The loss that the job trains, in words."""
        return "logistic loss" if self.protocol == "shares" else "Taylor loss"

    @property
    def has_row_roles(self) -> bool:
        """Whether a party tells the other one what rows are for."""
        return self.holdout == "column" or self.fold_by != "random"

    @property
    def n_models(self) -> int:
        """How many models the job fits: one, or one for each class."""
        return self.classes or 1

    @property
    def curvature_batch(self) -> int | None:
        """Rows in the batch of a curvature pair; None if pairs use the batch of their round, or there are none."""
        return self.algorithm.curvature_batch if self.algorithm.name == "sqn" else None

    @property
    def penalties(self) -> tuple[Penalty, ...]:
        """The penalties that the job fits, the strongest first: in descending order of `l1` + `l2`."""
        if self.search is not None:
            return tuple(sorted(self.search, key=lambda each: -(each.l1 + each.l2)))
        if self.path is None:
            return (Penalty(l1=self.l1, l2=self.l2),)
        n_steps = self.path.points - 1
        shares = [self.path.smallest ** (number / n_steps) for number in range(n_steps + 1)]
        return tuple(Penalty(l1=share * self.l1, l2=share * self.l2) for share in shares)

    @property
    def has_l1(self) -> bool:
        """Whether a fit has an L1 penalty. A training column is then one term."""
        return any(each.l1 > 0 for each in self.penalties)

    @property
    def is_penalised(self) -> bool:
        """Whether a fit has a penalty, so that the coordinator must know the diagonal of P under `shares`."""
        return any(each.l1 > 0 or each.l2 > 0 for each in self.penalties)

    @property
    def n_fits(self) -> int:
        """How often the job fits a model: for each penalty once without each fold, and once on all training rows."""
        return 1 if self.folds is None else len(self.penalties) * self.folds + 1

    @model_validator(mode="before")
    @classmethod
    def _tighten_default(cls, options: Any) -> Any:
        """Let a job with standard errors stop nearer to the minimum, unless it has a tolerance of its own."""
        if isinstance(options, dict) and options.get("inference") is True and "tolerance" not in options:
            return options | {"tolerance": INFERENCE_TOLERANCE}
        return options

    @model_validator(mode="before")
    @classmethod
    def _check_lists(cls, options: Any) -> Any:
        """Say where several penalties belong, which other programs take as a list of strengths."""
        for name in ("l1", "l2"):
            if isinstance(options, dict) and isinstance(options.get(name), list | tuple):
                raise ValueError(
                    f"`{name}` is one number: to compare several penalties, set `folds`, and list them in `search`,"
                    f" such as `search: [{{{name}: 0.1}}, {{{name}: 0.01}}]`"
                )
        return options

    @model_validator(mode="after")
    def _check(self) -> "JobConfig":
        if self.algorithm.name == "lbfgs" and self.batch != "all":
            raise ValueError("lbfgs works on the whole training set: remove `batch`, or set it to `all`")
        if self.protocol == "shares" and self.algorithm.name == "sqn":
            raise ValueError("`shares` measures no curvature: set the algorithm to `lbfgs` or `sgd`")
        if self.start_from is not None and self.protocol != "shares":
            raise ValueError(
                "`start_from` needs `protocol: shares`: under `paillier`, the guest's secret start protects its labels,"
                " and the coordinator would learn a start; remove `start_from`, or set that protocol"
            )
        if self.start_from == self.name:
            raise ValueError("`start_from` names the job itself: name an earlier job, or give this job another name")
        other, foreign = ("shares", SHARES_OPTIONS) if self.protocol == "paillier" else ("paillier", PAILLIER_OPTIONS)
        for name, why in foreign.items():
            # The job that travels has all options. At its default, an option has no effect.
            if getattr(self, name) != JobConfig.model_fields[name].default:
                raise ValueError(
                    f"`{name}` belongs to `protocol: {other}`, because {why}: remove it, or set that protocol"
                )
        if self.task == "bins" and self.protocol != "shares":
            raise ValueError("`task: bins` counts on secret shares: set `protocol: shares`")
        if self.inference:
            self._check_inference()
        if self.cipher == "reference" and self.slots not in (None, 1):
            raise ValueError("the reference cipher holds one value per ciphertext: remove `slots`, or set it to 1")
        if self.evaluate_every is not None and self.holdout == 0:
            raise ValueError("`evaluate_every` needs hold-out rows: set `holdout`, or remove `evaluate_every`")
        if self.classes is not None:
            self._check_classes()
        if self.patience is not None and self.evaluate_every is None:
            raise ValueError("`patience` counts evaluations: set `evaluate_every`, or remove `patience`")
        self._check_search()
        return self

    def _check_classes(self) -> None:
        excluded = {
            "evaluate_every": self.evaluate_every is not None,
            "holdout: column": self.holdout == "column",
            "inference": self.inference,
            "start_from": self.start_from is not None,
            "folds": self.folds is not None,
            "l1": self.l1 > 0,
            "task: bins": self.task == "bins",
        }
        for name in [name for name, is_set in excluded.items() if is_set]:
            raise ValueError(
                f"`classes` cannot be combined with `{name}`: remove one of them, or train each class as a job of its"
                " own, with a label of two values"
            )
        if self.algorithm.name != "lbfgs":
            raise ValueError("`classes` needs the algorithm `lbfgs`: set it, or remove `classes`")

    def _check_search(self) -> None:
        if self.start_from is not None and (self.l1 > 0 or self.folds is not None):
            raise ValueError("`l1` and `folds` choose their own start: remove `start_from`, or remove them")
        if (self.folds is not None or self.l1 > 0) and self.algorithm.name != "lbfgs":
            raise ValueError("`l1` and `folds` need the algorithm `lbfgs`: set it, or remove them")
        if self.folds is None and (self.path is not None or self.search is not None):
            raise ValueError("`path` and `search` compare penalties by cross-validation: set `folds`, or remove them")
        if self.folds is None and self.fold_by != "random":
            raise ValueError("`fold_by` says how rows get into folds: set `folds`, or remove it")
        if self.folds is None and self.choose != "log_loss":
            raise ValueError("`choose` says how folds compare penalties: set `folds`, or remove it")
        if self.task == "bins" and self.choose != "log_loss":
            raise ValueError("`task: bins` compares no penalties: remove `choose`")
        if self.task == "bins" and self.fold_by != "random":
            raise ValueError("`task: bins` has no folds: remove `fold_by`")
        if self.folds is not None and self.evaluate_every is not None:
            raise ValueError("`folds` choose the penalty by rows of their own: remove `evaluate_every`")
        if self.search is not None and (self.path is not None or self.l1 > 0 or self.l2 > 0):
            raise ValueError("`search` lists all penalties: remove `path`, `l1` and `l2`, or remove `search`")
        if self.path is not None and self.l1 == self.l2 == 0:
            raise ValueError("`path` begins at the job's own penalty: set `l1` or `l2`")
        if self.one_standard_error and self.path is None and self.search is None:
            raise ValueError("`one_standard_error` chooses among penalties: set `path` or `search`, or remove it")

    def _check_inference(self) -> None:
        """Refuse inference where the result is no maximum of the likelihood."""
        if self.algorithm.name != "lbfgs":
            raise ValueError(
                "`inference` needs a result at the maximum of the likelihood, where mini-batches do not end: set the"
                " algorithm to `lbfgs`, or remove `inference`"
            )
        if self.is_penalised or self.folds is not None:
            raise ValueError(
                "`inference` has no standard errors for penalised or chosen weights: remove `l1`, `l2` and `folds`, or"
                " remove `inference`"
            )
        if self.patience is not None:
            raise ValueError(
                "`inference` needs a training that goes on to the maximum of the likelihood: remove `patience` or"
                " `inference`"
            )
        if self.tolerance > MAX_INFERENCE_TOLERANCE:
            raise ValueError(
                f"`inference` needs a training that ends near the maximum of the likelihood: set `tolerance` to"
                f" {MAX_INFERENCE_TOLERANCE:g} or less, or remove it for the default of {INFERENCE_TOLERANCE:g}"
            )
