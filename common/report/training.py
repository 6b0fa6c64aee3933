"""The training in a report: loss and time of the rounds, and what moved between the processes."""

from collections import Counter
from collections.abc import Sequence
from statistics import median

from trilateral.common.base.progress import duration
from trilateral.common.data.preprocessing.few_rows import MIN_ROWS
from trilateral.common.jobs.history_file import REST, seconds_by_work
from trilateral.common.report import charts
from trilateral.common.report.contents import (
    NO_FIGURE,
    Chart,
    Charts,
    Facts,
    Section,
    Table,
    Text,
    number,
    pieces,
    share,
    size,
)
from trilateral.common.report.job_files import JobFiles, Line

WORK = {
    "setup": "keys or seeds, tables, the proof of the IDs, masked columns",
    "encrypt": "packing and encrypting scores",
    "check": "testing the ciphertexts that arrived",
    "product": "inner products with the columns",
    "seal": "adding own terms and masks to the sums",
    "prepare": "preparing randomness for the next round",
    "deal": "dealing random numbers for the rows",
    "decrypt": "decrypting the sums",
    "optimise": "computing the next step",
}
"""The kinds of work in a history."""
WORK[REST] = "for the other processes and the network"


def training_section(files: JobFiles) -> Section | None:
    """Describe the rounds; None without a history."""
    if not files.history:
        return None
    seconds, total = seconds_by_work(files.history)
    retries = n_repeated(files.history)
    losses = {int(line["round"]): line.get("loss") for line in files.history}
    has_losses = any(loss is not None for loss in losses.values())
    rounds = sorted(losses)
    facts = [
        ("rounds", f"{len(rounds):,}"),
        ("repeated attempts", f"{retries:,}"),
        ("time", duration(total)),
        ("time of a round, median", f"{_median_seconds(files.history):.3g} s"),
    ]
    drawn = []
    if has_losses:
        values = [losses[each] for each in rounds]
        drawn.append(Chart("loss", "Loss by round", lambda axes: charts.draw_loss(axes, rounds, values)))
    if sum(seconds.values()) > 0:
        drawn.append(
            Chart(
                "seconds",
                "Seconds by kind of work",
                lambda axes: charts.draw_seconds(axes, seconds),
                height=charts.rows_height(len(seconds)),
            )
        )
    work = Table(
        "Seconds by kind of work at this process",
        ("work", "what it is", "seconds", "share"),
        [
            (name, WORK.get(name, ""), number(each, 3), share(each / total if total else None))
            for name, each in seconds.items()
        ],
        n_texts=2,
        note="The first round counts from the opening of the job. Kinds of work may overlap.",
    )
    return Section(
        "training",
        "Training",
        pieces(
            Facts("The rounds of the training", facts),
            None if has_losses else Text("The coordinator keeps the losses of the rounds to itself."),
            Charts(drawn) if drawn else None,
            _evaluations(files),
            work,
            _traffic(files),
        ),
    )


def _traffic(files: JobFiles) -> Table | None:
    """Return the bytes of the rounds by kind of vector; None without a history."""
    sent, received = (_bytes_by_kind(files, direction) for direction in ("sent", "received"))
    kinds = sorted({*sent, *received}, key=lambda kind: -(sent[kind] + received[kind]))
    if not kinds:
        return None
    rows = [(kind, *(size(each[kind]) if each[kind] else NO_FIGURE for each in (sent, received))) for kind in kinds]
    rows.append(("all", size(sum(sent.values())), size(sum(received.values()))))
    return Table("Bytes of the rounds by kind of vector", ("kind", "sent", "received"), rows)


def n_repeated(history: Sequence[Line]) -> int:
    """Return how many attempts were repeated."""
    return len(history) - len({line.get("round") for line in history})


def _median_seconds(history: Sequence[Line]) -> float:
    """Return the median time of a round. The first round has the set-up too, and counts only if it is alone."""
    seconds = [float(line.get("seconds", {}).get("all", 0.0)) for line in history]
    return median(seconds[1:] or seconds)


def _bytes_by_kind(files: JobFiles, direction: str) -> Counter[str]:
    counts: Counter[str] = Counter()
    for line in files.history:
        for kind, each in line.get(direction, {}).items():
            counts[kind] += int(each.get("bytes", 0))
    return counts


def _has_few(evaluation: Line) -> bool:
    """Return whether few rows have a label, as far as it is known: the coordinator knows no numbers of labels."""
    n_positive, n_rows = evaluation.get("n_positive"), evaluation.get("n_rows")
    return n_positive is not None and n_rows is not None and min(n_positive, n_rows - n_positive) < MIN_ROWS


def _evaluations(files: JobFiles) -> Table | None:
    """Return the evaluations on the hold-out rows in the training; None without any, or if few rows have a label."""
    evaluated = [(line, line["evaluation"]) for line in files.history if line.get("evaluation")]
    if not evaluated or any(_has_few(each) for _, each in evaluated):
        return None
    rows = [
        (str(line["round"]), str(line["epoch"]), number(each.get("log_loss")), number(each.get("auc")))
        for line, each in evaluated
    ]
    return Table(
        "Evaluations on the hold-out rows during the training, before calibration",
        ("round", "epoch", "log loss", "AUC"),
        rows,
    )
