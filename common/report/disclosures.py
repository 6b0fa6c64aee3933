"""What left a process and what arrived, by kind, and what adds up over all jobs: from the audit log and the ledger."""

from collections import Counter

from trilateral.common.base.roles import Role
from trilateral.common.report.contents import (
    NO_FIGURE,
    Block,
    Points,
    Section,
    Table,
    Text,
    size,
)
from trilateral.common.report.job_files import JobFiles, Line, Moved

FORMS = {
    "scores": ("scores of a batch", "encrypted"),
    "squares": ("sum of squared scores", "encrypted"),
    "residual": ("residuals of a batch", "encrypted"),
    "score_change": ("changes of scores", "encrypted"),
    "total_change": ("changes of all scores together", "encrypted"),
    "gradient": ("sums for the gradient", "encrypted, masked for the coordinator"),
    "curvature": ("sums for the curvature", "encrypted, masked for the coordinator"),
    "loss": ("sum of the losses", "encrypted, masked for the coordinator"),
    "masked_columns": ("columns of all rows", "under a random mask"),
    "masked_scores": ("share of the scores", "under a random mask"),
    "masked_residual": ("share of the residuals", "under a random mask"),
    "dealt": ("corrections of random shares", "random numbers"),
    "sums": ("shares of gradient and losses", "masked and rounded"),
    "weights": ("share of the other party's weights", "clear at the other party"),
    "separation": ("signs that features separate the labels", "clear at the other party"),
    "counts": ("shares of the counts of labels in bins", "clear at the guest"),
    "dealt_slopes": ("corrections of random shares, for standard errors", "random numbers"),
    "unweighted_slopes": ("share of the slopes", "under a random mask"),
    "masked_slopes": ("share of the slopes", "under a random mask"),
    "rounded_slopes": ("share of the rounded slopes", "under a random mask"),
    "fine_columns": ("columns of all rows, rounded more finely", "under a random mask"),
    "unweighted_residual": ("share of the residuals", "under a random mask"),
    "slope_columns": ("share of products of slopes and columns", "under a random mask"),
    "holdout_scores": ("the host's part of the score of each evaluation row", "in clear"),
    "row_roles": ("what each common row is for, from a split column", "in clear"),
}
"""What each kind of an audit line is, and the form in which it travels."""

_METHODS = {
    "StartJob": "start of the job",
    "StopJob": "stop of the job",
    "ResumeJob": "resumption of the job",
    "OpenJob": "part in the job",
    "OpenAlignment": "alignment of the IDs",
    "OpenPrediction": "prediction",
    "GetScores": "scores of a prediction",
    "GetList": "list for online scores",
    "AnswerPoints": "online scores",
}


def disclosures_section(files: JobFiles, *, max_points: int | None = None) -> Section | None:
    """Describe what left and arrived; None without an audit log.

    Args:
        files: the files of the job.
        max_points: at the host, the largest number of sets of weights at which the policy lets rows be scored.
    """
    if not files.audit:
        return None
    blocks: list[Block] = [
        Text(
            "The audit log of this process records each decision before it takes effect, and what each session of the"
            " job has moved. The log is a chain of hashes, which the command trilateral audit verify follows."
        )
    ]
    sent, received = _table(files.sent, "sent"), _table(files.received, "received")
    blocks += [each for each in (sent, received) if each is not None]
    if files.ledger:
        blocks.append(_ledger(files, max_points))
    blocks.append(_decisions(files))
    refused = Counter(str(each.get("reason", "")) for each in files.audit if each.get("decision") == "refused")
    if refused:
        blocks.append(Text("Reasons of the refusals:"))
        blocks.append(Points([f"{reason} ({count:,})" if count > 1 else reason for reason, count in refused.items()]))
    return Section("disclosures", "What left this process", blocks)


def n_bytes(moved: Moved) -> int:
    """Return the bytes of what moved, over all peers and kinds."""
    return sum(counts.get("bytes", 0) for kinds in moved.values() for counts in kinds.values())


def n_values(moved: Moved, kind: str) -> int:
    """Return how many values of a kind travelled in clear."""
    return sum(kinds[kind].get("values", 0) for kinds in moved.values() if kind in kinds)


def _table(moved: Moved, verb: str) -> Table | None:
    rows = []
    for peer, kinds in moved.items():
        for kind, counts in sorted(kinds.items(), key=lambda each: -each[1].get("bytes", 0)):
            what, form = FORMS.get(kind, (kind, NO_FIGURE))
            values = counts.get("values") or counts.get("ciphertexts")
            rows.append(
                (
                    what,
                    peer,
                    form,
                    kind,
                    size(counts["bytes"]) if "bytes" in counts else NO_FIGURE,
                    f"{values:,}" if values else NO_FIGURE,
                )
            )
    if not rows:
        return None
    other = "to" if verb == "sent" else "from"
    return Table(
        f"What the job has {verb}",
        ("what", other, "form", "kind in the log", "bytes", "values or ciphertexts"),
        rows,
        n_texts=4,
    )


def _ledger(files: JobFiles, max_points: int | None) -> Table:
    rows = []
    for name, entry in files.ledger.items():
        points = f"{len(entry.points):,}"
        if max_points is not None:
            points += f" of {max_points:,}"
        rows.append((name, f"{entry.trainings:,}", f"{entry.equations:,}", points))
    scored = "sets of weights with which the other party got scores of the rows"
    if files.role is Role.GUEST:
        scored = "only the host counts them"
    return Table(
        "The ledger: what the other party has learnt about the rows of each dataset, over all jobs",
        ("dataset", "trainings", "equations", "points"),
        rows,
        note=f"Equations: about the training rows, from all trainings together. Points: {scored}.",
    )


def _decisions(files: JobFiles) -> Table:
    counts: dict[tuple[str, str, str], list[int]] = {}
    for line in files.audit:
        decision = str(line.get("decision", ""))
        method = str(line.get("method") or "session of the job")
        key = (_METHODS.get(method, method), decision, str(line.get("role") or NO_FIGURE))
        count = counts.setdefault(key, [0, 0])
        count[0] += 1 + int(line.get("suppressed", 0))
        count[1] += _given(line)
    rows = [
        (what, decision, role, f"{n:,}", f"{scores:,}" if scores else NO_FIGURE)
        for (what, decision, role), (n, scores) in counts.items()
    ]
    return Table(
        "Decisions about this job and its model",
        ("about", "decision", "caller", "lines", "scores given in clear"),
        rows,
        n_texts=3,
    )


def _given(line: Line) -> int:
    is_given = line.get("decision") == "allowed" and line.get("method") in {"GetScores", "AnswerPoints"}
    return int(line.get("n_scores", 0)) if is_given else 0
