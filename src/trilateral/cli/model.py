"""``trilateral model``: show, compare, watch or export a party's part of a model."""

import re
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trilateral.cli.command import public_errors
from trilateral.cli.json_output import JsonOption, print_json
from trilateral.common.base.errors import ConfigError
from trilateral.common.base.permissions import explain

if TYPE_CHECKING:
    from trilateral.common.config.dataset import DatasetConfig
    from trilateral.common.data.model.model_file import PartyModel

app = typer.Typer(help="Show, compare, watch or export a party's part of a model.", no_args_is_help=True)

ModelArgument = Annotated[
    str,
    typer.Argument(
        metavar="PATH|JOB",
        help="Path of a model file, or the name of a job together with --config.",
        show_default=False,
    ),
]
ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="Configuration of your own organisation's process."),
]


ClassOption = Annotated[
    str | None,
    typer.Option(
        "--class",
        metavar="CLASS",
        help="In a model of several classes: the value of the label or, at the host, the number of the class.",
    ),
]
ScoresOption = Annotated[
    list[Path] | None,
    typer.Option("--scores", metavar="FILE", help="Scores by the first model, then by the second, from `predict`."),
]
LabelsOption = Annotated[
    str | None,
    typer.Option("--labels", metavar="NAME", help="Labels of these rows: name of a dataset with `label`."),
]


ALPHA = 0.05


class Selection(StrEnum):
    """What decides which columns stay."""

    P_VALUE = "p-value"
    AIC = "aic"


class Format(StrEnum):
    """Format of an export."""

    SKLEARN = "sklearn"
    CSV = "csv"
    PMML = "pmml"
    ONNX = "onnx"


@app.command()
def show(model: ModelArgument, config: ConfigOption = None, *, as_json: JsonOption = False) -> None:
    """Print the weights by importance. For the guest's part, also print the quality and the calibration."""
    from rich.console import Console

    from trilateral.cli.results import print_part

    with public_errors():
        part = _load(model, config)
        if as_json:
            from trilateral.cli.model_records import model_record

            print_json(model_record(part))
        else:
            print_part(part, Console())


@app.command()
def export(
    model: ModelArgument,
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="File to write.")],
    format_: Annotated[
        Format,
        typer.Option(
            "--format",
            help="The coefficients of scikit-learn as JSON, a table of weights as CSV, or the part with its "
            "preprocessing as PMML or ONNX.",
        ),
    ],
    of_class: ClassOption = None,
    config: ConfigOption = None,
) -> None:
    """Write a part for other programs: its weights, or everything that computes its scores."""
    from trilateral.common.base.files import check_new, write_whole

    with public_errors():
        part = _load(model, config).one(of_class)
        check_new(out, "--out")
        content = _written(part, format_)
        try:
            write_whole(out, content)
        except OSError as error:
            raise ConfigError(f"--out {out}: cannot be written: {explain(error, out)}") from error
        what = "weights of " if format_ in {Format.SKLEARN, Format.CSV} else ""
        typer.echo(f"{out}: {what}the {part.role}'s part of the model of job {part.job.name}")
        if part.calibration_summary is not None:
            typer.echo(f"probabilities: {part.calibration_summary}")


@app.command()
def bins(model: ModelArgument, config: ConfigOption = None, *, as_json: JsonOption = False) -> None:
    """Print the bins of a bins job or of a model, with event rates, weights of evidence and information values."""
    from rich.console import Console

    from trilateral.cli.bins import print_bins
    from trilateral.common.data.model.bins_file import load_bins
    from trilateral.common.data.model.model_file import load_model

    with public_errors():
        path = _find(model, config)
        of_bins_job = path.with_name("bins.json")
        is_bins_job = path.name == "bins.json" or (of_bins_job.exists() and not path.exists())
        source = load_bins(of_bins_job) if is_bins_job else load_model(path)
        if as_json:
            from trilateral.cli.model_records import bins_record

            print_json(bins_record(source))
        else:
            print_bins(source, Console())


@app.command()
def scorecard(
    model: ModelArgument,
    *,
    base_score: Annotated[float, typer.Option("--base-score", help="Points at the base odds.")] = 600.0,
    base_odds: Annotated[
        float, typer.Option("--base-odds", min=1e-9, help="Odds of the negative to the positive label.")
    ] = 50.0,
    pdo: Annotated[float, typer.Option("--pdo", min=1e-9, help="Points that double the odds.")] = 20.0,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="File to write, .csv or .json, besides the table.")
    ] = None,
    of_class: ClassOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print the points of your own organisation's bins. The points of both parties add up to a person's total."""
    from rich.console import Console

    from trilateral.cli.bins import print_scorecard
    from trilateral.common.base.files import check_new, write_whole
    from trilateral.common.data.model.scorecard import (
        Scale,
        scorecard,
        scorecard_csv,
        scorecard_json,
        scorecard_record,
    )

    with public_errors():
        part, scale = _load(model, config).one(of_class), Scale(base_score, base_odds, pdo)
        rows = scorecard(part, scale)
        if out is not None:
            if out.suffix not in {".csv", ".json"}:
                raise ConfigError(f"--out {out}: the name must end in .csv or .json")
            check_new(out, "--out")
            text = scorecard_csv(rows) if out.suffix == ".csv" else scorecard_json(part, scale, rows)
            try:
                write_whole(out, text)
            except OSError as error:
                raise ConfigError(f"--out {out}: cannot be written: {explain(error, out)}") from error
        if as_json:
            print_json(scorecard_record(part, scale, rows))
            return
        print_scorecard(rows, Console())
        if part.job.protocol == "paillier":
            typer.echo(
                "note: the scores are those of the Taylor loss, so the odds are not those of a logistic regression"
            )


@app.command()
def select(
    model: ModelArgument,
    of_class: ClassOption = None,
    config: ConfigOption = None,
    *,
    by: Annotated[
        Selection | None, typer.Option("--by", help="Leave out columns one by one, by p-value or by AIC.")
    ] = None,
    alpha: Annotated[
        float | None,
        typer.Option("--alpha", min=0, max=1, help="With --by p-value: columns with a smaller one stay (0.05)."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Print information value, weight, variance inflation and correlation of your own organisation's terms.

    With --by, print the columns that a backward elimination leaves out. The job must have `inference`.
    """
    from rich.console import Console

    from trilateral.cli.bins import print_candidates, print_elimination
    from trilateral.common.data.model.elimination import elimination_of
    from trilateral.common.data.model.scorecard import candidates

    with public_errors():
        if alpha is not None and by is not Selection.P_VALUE:
            raise ConfigError("--alpha is a limit on p-values: give --by p-value too, or leave it out")
        part = _load(model, config).one(of_class)
        if by is not None:
            level = ALPHA if alpha is None else alpha
            rejected = elimination_of(part, "aic" if by is Selection.AIC else "p_value", level)
            if as_json:
                from trilateral.cli.model_records import elimination_record

                print_json(elimination_record(part, rejected))
            else:
                print_elimination(part, rejected, Console())
            return
        rows = candidates(part)
        if as_json:
            from trilateral.cli.model_records import candidates_record

            print_json(candidates_record(part, rows))
        else:
            print_candidates(rows, Console())


@app.command()
def compare(
    first: ModelArgument,
    second: ModelArgument,
    *,
    config: ConfigOption = None,
    dataset: Annotated[
        str | None, typer.Option(metavar="NAME", help="Rows to score with both models: name of a dataset.")
    ] = None,
    scores: ScoresOption = None,
    labels: LabelsOption = None,
    of_class: ClassOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print two models side by side: weights and, at the guest, the quality.

    With --dataset, also print how far your own organisation's parts of the score differ on its rows.

    With two files of scores of the same rows, --scores twice, also print the PSI of the score and, with their --labels,
    DeLong's test of the difference of the AUC.
    """
    from rich.console import Console

    from trilateral.cli.stability import compare_scores, print_comparison, print_own_scores, print_scores_of_two
    from trilateral.common.data.model.comparison import compare_own_scores
    from trilateral.common.data.model.score_origin import check_origin

    with public_errors():
        if (scores or labels is not None) and len(scores or []) != 2:
            raise ConfigError("--scores: give two files, one of each model: --scores FIRST --scores SECOND")
        of_labels = None if labels is None else (labels, dataset_of(labels, config))
        parts = [_load(model, config) for model in (first, second)]
        one, other = (part.one(of_class) for part in parts)
        name = None if of_class is None else parts[0].class_name(of_class)
        for file, part in zip(scores or [], parts, strict=False):
            check_origin(file, part)
        own = None if dataset is None else compare_own_scores(one, other, dataset_of(dataset, config))
        of_both = compare_scores(scores[0], scores[1], of_labels, name) if scores else None
        if as_json:
            from trilateral.cli.model_records import comparison_record

            print_json(comparison_record(one, other, own, of_both))
            return
        print_comparison(one, other, Console())
        if own is not None and dataset is not None:
            print_own_scores(own, one.role, dataset, Console())
        if of_both is not None:
            print_scores_of_two(of_both, Console())


@app.command()
def drift(
    model: ModelArgument,
    *,
    config: ConfigOption = None,
    dataset: Annotated[
        str | None, typer.Option(metavar="NAME", help="Rows to compare with the training rows: name of a dataset.")
    ] = None,
    scores: Annotated[
        Path | None, typer.Option("--scores", metavar="FILE", help="At the guest: scores of rows, from `predict`.")
    ] = None,
    labels: LabelsOption = None,
    of_class: ClassOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print how far rows have shifted since the training: the CSI of each column of --dataset.

    At the guest, with a file of --scores, also print the PSI of the score; with the --labels of the same rows, also
    whether the probabilities are still right. In a model of several classes, both are about one --class.
    """
    from rich.console import Console

    from trilateral.cli import stability

    with public_errors():
        if labels is not None and scores is None:
            raise ConfigError("--labels needs the scores of the rows: give --scores")
        if dataset is None and scores is None:
            raise ConfigError("there are no rows to compare: give --dataset, --scores or both")
        if of_class is not None and scores is None:
            raise ConfigError("--class chooses a score, and columns have no class: give --scores too, or leave it out")
        part, console = _load(model, config), Console()
        columns = score = drifted = None
        if dataset is not None:
            columns = stability.find_column_shifts(part, dataset_of(dataset, config), dataset)
        one = part if scores is None else part.one(of_class)
        name = None if of_class is None else part.class_name(of_class)
        # Labels tell something even about a model without hold-out rows, with which the scores could be compared.
        if scores is not None and (labels is None or one.score_distribution is not None):
            score = stability.find_score_shift(one, scores, name)
        if labels is not None and scores is not None:
            of_labels = labels, dataset_of(labels, config)
            drifted = stability.find_calibration_drift(one, scores, of_labels, name)
        if as_json:
            from trilateral.cli.model_records import drift_record

            print_json(drift_record(part, columns, score, drifted))
            return
        if columns is not None:
            stability.print_column_shifts(columns, console)
        if score is not None:
            stability.print_score_shift(score, console)
        if drifted is not None and labels is not None:
            stability.print_calibration_drift(drifted, one, labels, console)


def dataset_of(name: str, config: Path | None) -> "DatasetConfig":
    """Find a dataset by its name."""
    from trilateral.common.config.load import load_process_config

    if config is None:
        raise ConfigError(f"the dataset {name} needs the configuration that has it: give --config")
    datasets = load_process_config(config).datasets
    if name not in datasets:
        raise ConfigError(f"{config}: datasets has no {name}: it has {', '.join(datasets) or 'no dataset'}")
    return datasets[name]


def _written(part: "PartyModel", format_: Format) -> str | bytes:
    """Return the content of the file that holds a part in a format."""
    from trilateral.common.data.model.export import scikit_learn_json, weights_csv
    from trilateral.common.data.model.portable import Part

    match format_:
        case Format.SKLEARN:
            return scikit_learn_json(part)
        case Format.CSV:
            return weights_csv(part)
        case Format.PMML:
            from trilateral.common.data.model.pmml import pmml_text

            return pmml_text(Part.of(part))
        case Format.ONNX:
            try:
                from trilateral.common.data.model.onnx_graph import onnx_bytes
            except ImportError:
                raise ConfigError(
                    "--format onnx: onnx is not installed: run `pip install '.[export]'` in this project's folder, or "
                    "use `--format pmml`"
                ) from None
            return onnx_bytes(Part.of(part))


def _load(model: str, config: Path | None) -> "PartyModel":
    """Load a model by its path or, with a configuration, by the name of its job."""
    from trilateral.cli.wording import command_line
    from trilateral.common.data.model.model_file import NoModelError, load_model
    from trilateral.common.jobs.folder import BINS

    path = _find(model, config)
    try:
        return load_model(path)
    except NoModelError:
        if not path.with_name(BINS).exists():
            raise
        of_config = () if config is None else ("--config", config)
        raise ConfigError(
            f"{model} is a bins job, which has no model: to see its bins, run:"
            f" {command_line('model', 'bins', model, *of_config)}"
        ) from None


def _find(model: str, config: Path | None) -> Path:
    """Find the file of a model by its path or, with a configuration, by the name of its job."""
    from trilateral.common.config.load import load_process_config
    from trilateral.common.config.settings import JOB_NAME
    from trilateral.common.jobs.folder import MODEL, JobFolder

    if config is None:
        if Path(model).is_dir():
            return Path(model) / MODEL
        if Path(model).is_file() or Path(model).name != model:
            return Path(model)
        raise ConfigError(
            f"there is no file {model}: give the path of a file, or the name of a job together with --config"
        )
    if re.fullmatch(JOB_NAME, model) is None:
        raise ConfigError(f"{model} is not a valid job name: correct it, or leave out --config to give a path")
    return JobFolder(load_process_config(config).state, model).find_model()
