"""``trilateral model``: show or export a party's part of a model."""

import re
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trilateral.cli.command import public_errors
from trilateral.common.base.errors import ConfigError
from trilateral.common.base.permissions import explain

if TYPE_CHECKING:
    from trilateral.common.data.model.model_file import PartyModel

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
    PMML = "pmml"
    ONNX = "onnx"


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
        typer.Option(
            "--format",
            help="The coefficients of scikit-learn as JSON, a table of weights as CSV, or the part with its "
            "preprocessing as PMML or ONNX.",
        ),
    ],
    of_class: Annotated[
        str | None,
        typer.Option(
            "--class",
            metavar="CLASS",
            help="In a model of several classes: the value of the label or, at the host, the number of the class.",
        ),
    ] = None,
    config: ConfigOption = None,
) -> None:
    """Write a part for other programs: its weights, or everything that computes its scores."""
    from trilateral.common.base.files import write_whole
    from trilateral.common.data.model.model_file import load_model

    with public_errors():
        part = load_model(_find(model, config)).one(of_class)
        if out.exists():
            raise ConfigError(f"--out {out}: the file exists: choose another name, or remove the file")
        content = _written(part, format_)
        try:
            write_whole(out, content)
        except OSError as error:
            raise ConfigError(f"--out {out}: cannot be written: {explain(error, out)}") from error
        what = "weights of " if format_ in {Format.SKLEARN, Format.CSV} else ""
        typer.echo(f"{out}: {what}the {part.role}'s part of the model of job {part.job.name}")
        if part.calibration_summary is not None:
            typer.echo(f"probabilities: {part.calibration_summary}")


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
