"""Commands of the guest: ``trilateral align``, ``trilateral predict`` and ``trilateral score``."""

import asyncio
import csv
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trilateral.cli.command import ConfigOption, ExitCode, JobArgument, public_errors
from trilateral.cli.json_output import JsonOption, plain, print_json
from trilateral.common.base.errors import ConfigError
from trilateral.common.base.progress import duration

# Each command imports what it needs, so that `trilateral healthcheck` and `--help` stay fast.
if TYPE_CHECKING:
    from trilateral.guest_party.alignment import OnStage, Stage
    from trilateral.guest_party.dataset_alignment import DatasetAlignment
    from trilateral.guest_party.prediction import PredictionCounts

ReasonsOption = Annotated[
    int,
    typer.Option(
        "--reasons",
        min=0,
        metavar="N",
        help="Also name up to N of the guest's own columns that raise the score of a row most.",
    ),
]
HostReasonsOption = Annotated[
    int,
    typer.Option(
        "--host-reasons",
        min=0,
        metavar="N",
        help="Also name up to N of the host's labels of its columns that do. The host's policy must allow it.",
    ),
]
LINE_SECONDS = 10.0
"""Minimum time between two lines about the same stage."""


def align(
    dataset: Annotated[
        str, typer.Argument(metavar="DATASET", help="Name of the dataset in the configurations of both parties.")
    ],
    config: ConfigOption,
    as_json: JsonOption = False,
) -> None:
    """Count the IDs that both parties hold. Neither party sees the other's remaining IDs.

    Run this command at the guest.
    """
    from trilateral.client.asynchronous import connect
    from trilateral.common.data.tables.id_form import describe_changes

    async def ask() -> "DatasetAlignment":
        async with connect(config) as session:
            with _shown_stages() as on_stage:
                return await session.align(dataset, on_stage=on_stage)

    with public_errors():
        counts = asyncio.run(ask())
        if as_json:
            print_json(plain(counts))
            return
        typer.echo(f"{counts.n_common:,} common IDs")
        typer.echo(f"guest: {counts.n_guest:,} IDs, {counts.n_guest - counts.n_common:,} of them not at the host")
        typer.echo(f"host: {counts.n_host:,} IDs, {counts.n_host - counts.n_common:,} of them not at the guest")
        typer.echo(f"guest's IDs changed by `id_form`: {describe_changes(counts.changed) or 'none'}")


def predict(
    job: JobArgument,
    config: ConfigOption,
    *,
    dataset: Annotated[
        str,
        typer.Option(metavar="NAME", help="Rows to score: name of a dataset in the configurations of both parties."),
    ],
    out: Annotated[Path, typer.Option(metavar="FILE", help="File for the scores, .csv or .parquet.")],
    missing: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="File for the IDs that the host does not hold. Default: next to --out."),
    ] = None,
    aligned: Annotated[
        bool, typer.Option("--aligned", help="Both tables hold the same IDs: compare them instead of intersecting.")
    ] = False,
    reasons: ReasonsOption = 0,
    host_reasons: HostReasonsOption = 0,
    as_json: JsonOption = False,
) -> None:
    """Score rows with the model of a job.

    Run this command at the guest. The host's policy must allow it.
    """
    from trilateral.client.asynchronous import connect, missing_file

    unscored = missing or missing_file(out)

    async def ask() -> "PredictionCounts":
        async with connect(config) as session:
            with _shown_stages() as on_stage:
                return await session.predict_to_file(
                    job,
                    dataset,
                    out,
                    missing=unscored,
                    aligned=aligned,
                    reasons=reasons,
                    host_reasons=host_reasons,
                    on_stage=on_stage,
                )

    with public_errors():
        if aligned and missing is not None:
            raise ConfigError("with --aligned, no ID can be missing at the host: leave out --missing or --aligned")
        counts = asyncio.run(ask())
        for warning in counts.warnings:
            typer.echo(f"warning: {warning}", err=True)
        if as_json:
            print_json(plain(counts) | {"out": out, "missing": None if aligned else unscored})
        else:
            _print_counts(counts, out, None if aligned else unscored)
        if not counts.n_scored:
            typer.echo(
                "warning: no row was scored, because the two tables have no IDs in common: compare how both write "
                "their IDs, and see `id_form`",
                err=True,
            )
            raise typer.Exit(ExitCode.NOTHING_SCORED)


def _print_counts(counts: "PredictionCounts", out: Path, unscored: Path | None) -> None:
    for note in counts.notes:
        typer.echo(note)
    typer.echo(f"scored {counts.n_scored:,} rows: {out}")
    typer.echo(f"probabilities: {counts.calibration}")
    if unscored is not None:
        typer.echo(f"not at the host: {counts.n_guest - counts.n_scored:,} of the guest's rows: {unscored}")
        typer.echo(f"not at the guest: {counts.n_host - counts.n_scored:,} of the host's rows")


def score(
    job: JobArgument,
    ids: Annotated[list[str], typer.Argument(metavar="ID...", help="IDs of the rows to score, at most 100.")],
    config: ConfigOption,
    dataset: Annotated[
        str, typer.Option(metavar="NAME", help="The rows: name of a dataset in the configurations of both parties.")
    ],
    *,
    reasons: ReasonsOption = 0,
    host_reasons: HostReasonsOption = 0,
    as_json: JsonOption = False,
) -> None:
    """Score single rows by the running process of the guest, within milliseconds.

    Run this command at the guest. The host must have the job and the dataset in `online.precompute`. The guest's
    features come from its table.
    """
    from trilateral.client.asynchronous import Score, connect
    from trilateral.common.data.model.score_columns import FIGURES, reason_headers

    async def ask() -> list[Score]:
        async with connect(config) as session:
            return await session.score(job, dataset, ids, reasons=reasons, host_reasons=host_reasons)

    with public_errors():
        rows = asyncio.run(ask())
        if as_json:
            print_json({"scores": rows})
        else:
            writer = csv.writer(sys.stdout, lineterminator="\n")
            writer.writerow(["id", *FIGURES, *reason_headers(reasons, host_reasons)])
            for row in rows:
                named = [*_filled(row.reasons, reasons), *_filled(row.host_reasons, host_reasons)]
                writer.writerow([row.id, row.score, row.probability, *named])
        for party in ("host", "guest"):
            if count := sum(row.lacking == party for row in rows):
                typer.echo(f"not at the {party}: {count} of the IDs", err=True)
        if all(row.lacking for row in rows):
            raise typer.Exit(ExitCode.NOTHING_SCORED)


def _filled(reasons: Sequence[str], n_reasons: int) -> list[str]:
    """Return the fields of so many reasons, empty where there is no further one."""
    return [*reasons, *[""] * (n_reasons - len(reasons))]


class StageLines:
    """Lines about stages: one for each new stage, and now and then how much of it is done and how long the rest takes.

    Args:
        clock: returns seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._shown: set[str] = set()
        self._begun = self._last_line = 0.0

    def line(self, stage: "Stage") -> str | None:
        """Return the line that is due; None if there is none."""
        now = self._clock()
        if stage.doing not in self._shown:
            self._shown.add(stage.doing)
            self._begun = self._last_line = now
            return stage.doing
        if not stage.total or not 0 < stage.done < stage.total or now - self._last_line < LINE_SECONDS:
            return None
        self._last_line = now
        left = (now - self._begun) * (stage.total - stage.done) / stage.done
        return f"{stage.doing}: {stage.done:,} of {stage.total:,}, about {duration(left)} left"


@contextmanager
def _shown_stages() -> "Iterator[OnStage]":
    """Yield a callback that shows stages on stderr: a bar on a terminal, elsewhere lines."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        SpinnerColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True)
    if not console.is_terminal:
        lines = StageLines(time.monotonic)

        def print_new(stage: "Stage") -> None:
            if line := lines.line(stage):
                console.print(line, markup=False, highlight=False, soft_wrap=True)

        yield print_new
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left:"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=None)
        doing = ""

        def move(stage: "Stage") -> None:
            nonlocal doing
            if stage.doing != doing:
                doing = stage.doing
                progress.reset(task, total=stage.total, description=doing)
            progress.update(task, completed=stage.done)

        yield move
