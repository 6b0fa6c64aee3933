"""``trilateral data``: tables for both parties, from the paper's data sets or from the demo."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from trilateral.cli.command import public_errors
from trilateral.cli.wording import command_line
from trilateral.common.base.errors import ConfigError, DataError, PeerError
from trilateral.common.base.files import write_whole
from trilateral.common.base.permissions import explain
from trilateral.common.base.roles import PARTIES, Role
from trilateral.common.trial.catalogue import PUBLISHED, PublishedDataSet, PublishedName

app = typer.Typer(help="Get tables for a trial.", no_args_is_help=True)

ADDRESSES = {Role.COORDINATOR: "127.0.0.1:50050", Role.HOST: "127.0.0.1:50051", Role.GUEST: "127.0.0.1:50052"}
JOB = "job.yaml"
CERTIFICATES = "certs"


@app.command()
def get(
    name: Annotated[PublishedName, typer.Argument(help="Name of the data set.")],
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="Folder for the files. Default: the name of the data set."),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option("--file", metavar="FILE", help="The publisher's file, if you have it already: CSV or zip."),
    ] = None,
    url: Annotated[
        str | None, typer.Option("--url", metavar="URL", help="Another address to download the file from.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace existing files.")] = False,
) -> None:
    """Get a data set, split it between a host and a guest, and write all files for a trial on this machine."""
    with public_errors():
        data_set = PUBLISHED[name]
        folder = out or Path(name)
        if file is not None and url is not None:
            raise ConfigError("--file and --url exclude each other: give one of them")
        source = file or url or data_set.url
        with_file = command_line("data", "get", name, "--out", folder, "--file", data_set.file_name)
        way_out = f"  By hand: {data_set.by_hand}, and then run\n    {with_file}"
        if source is None:
            raise ConfigError(f"a download of {name} needs an account at its publisher\n{way_out}")
        _refuse_to_overwrite(folder, force)
        try:
            content = _read(source) if isinstance(source, Path) else _download(source)
            texts = _make_files(name, data_set, content, source)
        except (DataError, PeerError) as error:
            raise type(error)(f"{error}\n{way_out}") from error
        try:
            for file_name, text in texts.items():
                write_whole(folder / file_name, text)
        except OSError as error:
            raise ConfigError(f"--out {folder}: cannot be written: {explain(error, folder)}") from error
        _print_result(data_set, folder, content)


@app.command()
def demo(
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="Folder for the two tables. Each gets a folder of its own.")
    ],
) -> None:
    """Write the demo's two tables into a folder for each party. Existing tables are replaced."""
    from trilateral.demo.tables import DATASET, demo_tables

    with public_errors():
        for role, table in demo_tables().items():
            path = out / role / f"{DATASET}.csv"
            try:
                write_whole(path, table.to_csv(index=False))
            except OSError as error:
                raise ConfigError(f"--out {out}: cannot be written: {explain(error, out)}") from error
            typer.echo(f"{path}: {len(table)} rows")


# --- reading


def _read(path: Path) -> bytes:
    from trilateral.common.trial.published import MAX_BYTES

    try:
        if path.stat().st_size > MAX_BYTES:
            raise DataError(f"{path}: the file is larger than {MAX_BYTES // 2**20} MB, so it cannot be this data set")
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"--file {path}: cannot be read: {explain(error, path)}") from error


def _download(url: str) -> bytes:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

    from trilateral.common.trial.download import download
    from trilateral.common.trial.published import MAX_BYTES

    console = Console(stderr=True)
    columns = TextColumn("{task.description}"), BarColumn(bar_width=12), DownloadColumn()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("downloading", total=None)
        return download(url, MAX_BYTES, lambda done, total: progress.update(task, completed=done, total=total))


# --- writing


def _file_names() -> list[str]:
    return [*(f"{role}.csv" for role in PARTIES), *(f"{role}.yaml" for role in Role), JOB]


def _refuse_to_overwrite(folder: Path, force: bool) -> None:
    there = [name for name in _file_names() if (folder / name).exists()]
    if there and not force:
        raise ConfigError(f"--out {folder}: {there[0]} exists: choose a new folder, or replace the files with --force")


def _make_files(name: PublishedName, data_set: PublishedDataSet, content: bytes, source: Path | str) -> dict[str, str]:
    """Return the content of all files, by name."""
    from trilateral.common.config.settings import commented_yaml

    with _naming(source):
        # The table reader takes longer to import than the rest of the command line.
        from trilateral.common.trial.published import check_content, csv_text, read_published, split

        table = read_published(content, data_set)
        check_content(table, data_set)
    texts = {f"{role}.csv": csv_text(part) for role, part in split(table, data_set).items()}
    texts |= {f"{role}.yaml": _process_yaml(role, name) for role in Role}
    texts[JOB] = commented_yaml("The job. All options: configs/jobs/", {"name": name.value, "dataset": name.value})
    return texts


@contextmanager
def _naming(source: Path | str) -> Iterator[None]:
    try:
        yield
    except DataError as error:
        raise DataError(f"{source}: {error}") from error


def _process_yaml(role: Role, name: PublishedName) -> str:
    from trilateral.common.config.settings import commented_yaml
    from trilateral.common.trial.localhost import process_settings

    config = process_settings(role, ADDRESSES, certificates=Path(CERTIFICATES))
    if role in PARTIES:
        config["datasets"] = {name.value: {"path": f"{role}.csv"}}
    if role is Role.GUEST:
        config["datasets"][name.value]["label"] = {"column": "label", "positive": 1, "negative": 0}
    return commented_yaml(f"The {role} of a trial on one machine. All options: configs/demo/{role}.yaml", config)


# --- reporting


def _print_result(data_set: PublishedDataSet, folder: Path, content: bytes) -> None:
    from trilateral.common.trial.development import DevelopmentFiles

    typer.echo(
        f"{data_set.title}: {data_set.n_rows:,} rows, as published\n"
        f"  SHA-256 of the file     {hashlib.sha256(content).hexdigest()}\n"
        f"  SHA-256 of its content  {data_set.sha256}\n"
        f"{folder / 'host.csv'}: {len(data_set.host_features)} features\n"
        f"{folder / 'guest.csv'}: {len(data_set.guest_features)} features and the label\n"
    )
    folder = folder.absolute()
    configs = {role: folder / f"{role}.yaml" for role in Role}
    certificates = folder / CERTIFICATES
    if not any(path.exists() for path in DevelopmentFiles(certificates).all):
        command = command_line("certs", "development", "--out", certificates)
        typer.echo(f"Before you train on this machine, make certificates for a trial:\n  {command}\n")
    typer.echo("To train, run each line in a terminal of its own:")
    for role, config in configs.items():
        typer.echo(f"  {command_line('serve', role, '--config', config)}")
    typer.echo(f"  {command_line('train', folder / JOB, '--config', configs[Role.GUEST])}")
