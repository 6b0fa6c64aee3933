"""``trilateral``: the command line."""

import os
from enum import StrEnum
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer

from trilateral.cli import certs, data, estimate, guest, jobs, model, process, report, state
from trilateral.cli.command import public_errors

app = typer.Typer(
    help="Train a logistic regression on the joint columns of two organisations without showing them to each other.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

for command in (
    process.serve,
    process.check,
    process.healthcheck,
    estimate.estimate,
    jobs.train,
    jobs.bins,
    jobs.watch,
    jobs.status,
    jobs.stop,
    jobs.resume,
    guest.align,
    guest.predict,
    guest.score,
    report.report,
    state.backup,
    state.restore,
):
    app.command()(command)


class DemoAlgorithm(StrEnum):
    """The algorithm of the demo."""

    LBFGS = "lbfgs"
    SQN = "sqn"
    SGD = "sgd"


@app.command()
def demo(
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder for tables, configurations, logs and models.")
    ] = Path("demo-result"),
    key_bits: Annotated[int, typer.Option(help="Bits of the Paillier modulus.")] = 2048,
    algorithm: Annotated[DemoAlgorithm, typer.Option(help="Algorithm to train with.")] = DemoAlgorithm.LBFGS,
) -> None:
    """Train on this machine, with three processes and built-in data."""
    from trilateral.cli.demo.run import run_demo

    with public_errors():
        run_demo(out, key_bits, algorithm.value)


app.add_typer(model.app, name="model")
app.add_typer(certs.app, name="certs")
app.add_typer(data.app, name="data")
app.add_typer(state.audit, name="audit")


def main() -> None:
    """Run the command line."""
    app(prog_name="trilateral")


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"trilateral {version('trilateral')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", envvar="TRILATERAL_DEBUG", help="Show a traceback with each error.")
    ] = False,
) -> None:
    # In the environment, the setting also reaches the processes that the demo starts.
    if debug:
        os.environ["TRILATERAL_DEBUG"] = "1"


if __name__ == "__main__":
    main()
