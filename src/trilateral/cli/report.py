"""``trilateral report``: write what a party may know about a job into one HTML file."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trilateral.cli.command import public_errors
from trilateral.cli.model import ConfigOption, LabelsOption, dataset_of
from trilateral.common.base.errors import ConfigError
from trilateral.common.base.permissions import explain

if TYPE_CHECKING:
    from trilateral.common.report.later_rows import LaterRows


def report(
    job: Annotated[
        str,
        typer.Argument(
            metavar="PATH|JOB",
            help="Name of a job together with --config, or the path of its folder or of a model file.",
            show_default=False,
        ),
    ],
    *,
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="File to write, such as report.html.")],
    config: ConfigOption = None,
    scores: Annotated[
        Path | None,
        typer.Option("--scores", metavar="FILE", help="At the guest: scores of later rows, from `predict`."),
    ] = None,
    labels: LabelsOption = None,
    dataset: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Later rows to compare with those of the training: a dataset."),
    ] = None,
) -> None:
    """Write a report of a job into one HTML file, which only this user can read."""
    from rich.console import Console

    from trilateral.common.base.files import check_new, write_whole
    from trilateral.common.config.load import load_process_config
    from trilateral.common.report.job_files import read_job, read_path
    from trilateral.common.report.page import html_of

    with public_errors():
        check_new(out, "--out")
        if labels is not None and scores is None:
            raise ConfigError("--labels needs the scores of the rows: give --scores")
        later = _later(config, scores, labels, dataset)
        with Console(stderr=True).status("reading the files of the job"):
            files = read_job(load_process_config(config), job) if config is not None else read_path(Path(job))
        with Console(stderr=True).status("drawing the report"):
            page = html_of(files, later)
        try:
            write_whole(out, page)
        except OSError as error:
            raise ConfigError(f"--out {out}: cannot be written: {explain(error, out)}") from error
        typer.echo(f"{out}: report of the {files.role} about job {files.job}")


def _later(config: Path | None, scores: Path | None, labels: str | None, dataset: str | None) -> "LaterRows | None":
    from trilateral.common.report.later_rows import LaterRows

    if scores is None and dataset is None:
        return None
    return LaterRows(
        None if dataset is None else (dataset, dataset_of(dataset, config)),
        scores,
        None if labels is None else (labels, dataset_of(labels, config)),
    )
