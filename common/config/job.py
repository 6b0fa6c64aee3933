"""The job: what is trained and how. One YAML, the same for all three organisations."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from trilateral.common.config.settings import JobName, Settings


class Sgd(Settings):
    """Stochastic gradient descent, the paper's baseline: w <- w - eta_k g."""

    name: Literal["sgd"] = "sgd"
    learning_rate: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.15
    decay: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """eta_k = learning_rate / sqrt(1 + decay k)."""


class Sqn(Settings):
    """The paper's stochastic quasi-Newton method: w <- w - eta_k H g."""

    name: Literal["sqn"] = "sqn"
    learning_rate: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.15
    decay: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.1
    """eta_k = learning_rate / sqrt(1 + decay k)."""
    first_learning_rate: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """In the place of `learning_rate` until the first curvature pair, while H = I."""
    memory: Annotated[int, Field(ge=1, le=100)] = 10
    """M: how many curvature pairs are kept."""
    interval: Annotated[int, Field(ge=1, le=1000)] = 4
    """L: rounds between curvature pairs, and the length of the averaging windows."""
    curvature_batch: Annotated[int, Field(ge=1)] | None = None
    """|S_H|, drawn anew for every pair; by default S_H is the round's own batch."""


class Lbfgs(Settings):
    """Limited-memory BFGS with exact steps on the whole training set: no learning rate."""

    name: Literal["lbfgs"] = "lbfgs"
    memory: Annotated[int, Field(ge=1, le=100)] = 10


Algorithm = Annotated[Sgd | Sqn | Lbfgs, Field(discriminator="name")]


class JobConfig(Settings):
    """One training job."""

    name: JobName
    dataset: JobName
    """The name under which each party's own configuration knows its table."""
    aligned: bool = False
    """Both tables hold the same IDs already. By default the parties first find the rows that they have in common."""
    algorithm: Algorithm = Lbfgs()
    batch: Annotated[int, Field(ge=1)] | Literal["all"] = "all"
    """|S|: samples in a round. An epoch is cut into equal batches of at least this many."""
    epochs: Annotated[int, Field(ge=1, le=100_000)] = 30
    """The most epochs to train for."""
    tolerance: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1e-5
    """Training stops when the mean loss of two consecutive epochs differs by less; lbfgs when its loss is
    estimated to be within this of the minimum, which takes whitened columns to be a good estimate early on."""
    l2: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """lambda of the penalty lambda/2 ||beta||^2 on the weights of the standardised features."""
    intercept: bool = True
    """The guest adds a column of ones, which the penalty leaves alone."""
    holdout: Annotated[float, Field(ge=0, lt=1)] = 0.2
    """Share of the rows kept out of training, on which the guest reports at the end."""
    evaluate_every: Annotated[int, Field(ge=1)] | None = None
    """Epochs between evaluations on the hold-out rows during training; by default there is one at the end alone."""
    patience: Annotated[int, Field(ge=1)] | None = None
    """Training stops after this many evaluations without a hold-out log loss that is lower by more than `tolerance`.
    The result is then the best point that was evaluated. By default evaluations change nothing."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Decides the hold-out split and the batches, never anything cryptographic."""
    key_bits: Annotated[int, Field(ge=256, le=8192, multiple_of=2)] = 2048
    """Bits of the Paillier modulus n. A party's policy sets the least that it accepts."""
    cipher: Literal["packed", "reference"] = "packed"
    """`reference` runs through phe's own operations: slow, an independent check."""
    slots: Annotated[int, Field(ge=1)] | None = None
    """k: samples in one ciphertext; by default as many as fit."""

    @property
    def curvature_batch(self) -> int | None:
        """|S_H|, if S_H is a draw of its own."""
        return self.algorithm.curvature_batch if self.algorithm.name == "sqn" else None

    @model_validator(mode="after")
    def _check(self) -> "JobConfig":
        if self.algorithm.name == "lbfgs" and self.batch != "all":
            raise ValueError("lbfgs takes exact steps on the whole training set: leave `batch` out, or set it to `all`")
        if self.cipher == "reference" and self.slots not in (None, 1):
            raise ValueError("the reference cipher holds one sample a ciphertext: leave `slots` out, or set it to 1")
        if self.evaluate_every is not None and self.holdout == 0:
            raise ValueError("`evaluate_every` needs hold-out rows: set `holdout`, or leave it out")
        if self.patience is not None and self.evaluate_every is None:
            raise ValueError("`patience` counts evaluations: set `evaluate_every`, or leave it out")
        return self
