"""``trilateral model``: show or export a party's part of a model."""

import re
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from trilateral.cli.command import public_errors
from trilateral.common.base.errors import ConfigError
from trilateral.common.base.permissions import explain

app = typer.Typer(help="Show or export a party's part of a model.", no_args_is_help=True)

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


class Format(StrEnum):
    """Format of an export."""

    SKLEARN = "sklearn"
    CSV = "csv"


@app.command()
def show(model: ModelArgument, config: ConfigOption = None) -> None:
    """Print the weights by importance. For the guest's part, also print the quality and the calibration."""
    from rich.console import Console

    from trilateral.cli.results import print_part
    from trilateral.common.data.model.model_file import load_model

    with public_errors():
        print_part(load_model(_find(model, config)), Console())


@app.command()
def export(
    model: ModelArgument,
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="File to write.")],
    format_: Annotated[
        Format,
        typer.Option("--format", help="The coefficients of scikit-learn as JSON, or a table of weights as CSV."),
    ],
    config: ConfigOption = None,
) -> None:
    """Write the weights for other programs."""
    from trilateral.common.base.files import write_whole
    from trilateral.common.data.model.export import scikit_learn_json, weights_csv
    from trilateral.common.data.model.model_file import load_model

    with public_errors():
        part = load_model(_find(model, config))
        if out.exists():
            raise ConfigError(f"--out {out}: the file exists: choose another name, or remove the file")
        text = scikit_learn_json(part) if format_ is Format.SKLEARN else weights_csv(part)
        try:
            write_whole(out, text)
        except OSError as error:
            raise ConfigError(f"--out {out}: cannot be written: {explain(error, out)}") from error
        typer.echo(f"{out}: weights of the {part.role}'s part of the model of job {part.job.name}")
        if part.calibration_summary is not None:
            typer.echo(f"probabilities: {part.calibration_summary}")


@app.command()
def bins(model: ModelArgument, config: ConfigOption = None) -> None:
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
    config: ConfigOption = None,
) -> None:
    """Print the points of your own organisation's bins. The points of both parties add up to a person's total."""
    from rich.console import Console

    from trilateral.cli.bins import print_scorecard
    from trilateral.common.base.files import write_whole
    from trilateral.common.data.model.model_file import load_model
    from trilateral.common.data.model.scorecard import Scale, scorecard, scorecard_csv, scorecard_json

    with public_errors():
        part, scale = load_model(_find(model, config)), Scale(base_score, base_odds, pdo)
        rows = scorecard(part, scale)
        if out is not None:
            if out.suffix not in {".csv", ".json"}:
                raise ConfigError(f"--out {out}: the name must end in .csv or .json")
            if out.exists():
                raise ConfigError(f"--out {out}: the file exists: choose another name, or remove the file")
            text = scorecard_csv(rows) if out.suffix == ".csv" else scorecard_json(part, scale, rows)
            try:
                write_whole(out, text)
            except OSError as error:
                raise ConfigError(f"--out {out}: cannot be written: {explain(error, out)}") from error
        print_scorecard(rows, Console())
        if part.job.protocol == "paillier":
            typer.echo(
                "note: the scores are those of the Taylor loss, so the odds are not those of a logistic regression"
            )


@app.command()
def select(model: ModelArgument, config: ConfigOption = None) -> None:
    """Print information value, weight, variance inflation and correlation of your own organisation's terms."""
    from rich.console import Console

    from trilateral.cli.bins import print_candidates
    from trilateral.common.data.model.model_file import load_model
    from trilateral.common.data.model.scorecard import candidates

    with public_errors():
        print_candidates(candidates(load_model(_find(model, config))), Console())


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
