"""What the guest's report of a model says."""

from collections.abc import Sequence

from trilateral.common.data.model.calibration import InterceptOnly, Uncalibrated
from trilateral.common.data.model.distributions import LARGE
from trilateral.common.data.model.model_file import PartyModel, is_by_auc
from trilateral.common.report import charts
from trilateral.common.report.bins import bins_section
from trilateral.common.report.classes import class_figures, class_sections, sets_of
from trilateral.common.report.contents import (
    WIDE,
    Block,
    Chart,
    Charts,
    Report,
    Section,
    Table,
    Text,
    number,
)
from trilateral.common.report.disclosures import disclosures_section
from trilateral.common.report.job_files import JobFiles
from trilateral.common.report.later_rows import Later, stability_section
from trilateral.common.report.model_sections import (
    data_section,
    overview,
    remarks_of,
    settings_section,
    terms_section,
    weight_remarks,
)
from trilateral.common.report.quality import (
    Evaluated,
    calibration_section,
    evaluated_sets,
    key_figures,
    quality_section,
    threshold_section,
)
from trilateral.common.report.training import training_section

FEW_POSITIVE = 100
"""With fewer rows of the rarer label, figures of a set are rough (Collins, Ogundimu and Altman 2016, Sample size
considerations for the external validation of a multivariable prognostic model)."""


def guest_report(files: JobFiles, model: PartyModel, later: Later) -> Report:
    """Return the report of a model at the guest.

    Args:
        files: the files of the job.
        model: the guest's part.
        later: what is known about rows after the training.
    """
    sets = [] if model.classes is not None else evaluated_sets(model)
    if later.labelled is not None:
        sets = [*sets, later.labelled.evaluated]
    sets_of_classes = [] if model.classes is None else sets_of(model, later)
    sections = [
        Section("summary", "Summary", _summary(model, sets or sets_of_classes, later)),
        data_section(model),
        *(_of_scores(model, sets) if model.classes is None else class_sections(model, model.classes, later)),
        bins_section(model),
        search_section(model),
        stability_section(model, later),
        training_section(files),
        disclosures_section(files),
        settings_section(files),
    ]
    figures = key_figures(sets[0]) if sets else class_figures(model.classes)
    return Report(
        title=f"Model {files.job}",
        role="guest",
        lead="A logistic regression on the columns of two organisations, as the guest sees it: the quality of the whole"
        " model, and the guest's own part of it.",
        figures=figures,
        sections=[each for each in sections if each is not None],
        identity=files.identity,
    )


def _of_scores(model: PartyModel, sets: Sequence[Evaluated]) -> list[Section | None]:
    if not sets:
        none = Text("The job had no hold-out rows, so the quality of the model is not known.")
        return [
            Section("quality", "Ranking", [none]),
            calibration_section(model, sets),
            terms_section(model),
        ]
    return [
        quality_section(sets),
        calibration_section(model, sets),
        threshold_section(model, sets[0]),
        terms_section(model),
    ]


def search_section(model: PartyModel) -> Section | None:
    """Describe the penalties that a cross-validation has compared; None without one."""
    if not model.search:
        return None
    search = model.search
    by_auc = is_by_auc(search)
    rows = [
        (
            number(each.l1, 6),
            number(each.l2, 6),
            number(each.loss, 5),
            number(each.standard_error, 5),
            *((number(each.auc, 5), number(each.auc_error, 5)) if by_auc else ()),
            number(each.n_terms, 1),
            "chosen" if each.chosen else "",
        )
        for each in search
    ]
    return Section(
        "search",
        "Choice of the penalty",
        [
            Charts(
                [
                    Chart(
                        "path", "Penalties by cross-validation", lambda axes: charts.draw_path(axes, search), width=WIDE
                    )
                ]
            ),
            Table(
                f"Cross-validation with {model.job.folds} folds",
                ("l1", "l2", "log loss", "std. error", *(("AUC", "std. error") if by_auc else ()), "columns", "choice"),
                rows,
                n_texts=0,
                note="Columns: training columns of both parties with a weight other than 0, as a mean over the folds.",
            ),
        ],
    )


def _summary(model: PartyModel, sets: Sequence[Evaluated], later: Later) -> list[Block]:
    statements = []
    auc = sets[0].figure("auc") if sets and model.classes is None else None
    if auc is not None:
        statements.append(
            f"On the {sets[0].title}, a positive row has a higher score than a negative one in {auc:.1%} of all pairs."
        )
    remarks = _remarks(model, sets, later)
    return [
        *overview(model),
        *map(Text, statements),
        *remarks_of(remarks, "The report has found nothing unusual. It does not replace a review."),
    ]


def _remarks(model: PartyModel, sets: Sequence[Evaluated], later: Later) -> list[str]:
    """Return what a reviewer should look at."""
    remarks = []
    if model.job.protocol == "paillier":
        remarks.append(
            "The training minimised the Taylor loss, so that scores are not log-odds: use the calibrated probabilities."
        )
    if not sets:
        remarks.append("There are no hold-out rows: nothing says how good the model is on other rows.")
    for each in sets:
        if each.metrics.n_rarer < FEW_POSITIVE:
            remarks.append(f"Few rows of the rarer label on the {each.title}: the figures are rough.")
    if isinstance(model.calibration, InterceptOnly | Uncalibrated) and model.classes is None:
        remarks.append(f"Probabilities are {model.calibration_summary}.")
    if model.job.patience is not None:
        remarks.append(
            "The hold-out rows also decided when the training stopped, so that their figures are slightly too good."
        )
    remarks += _falls(sets) if model.classes is None else []
    remarks += weight_remarks(model)
    large = [name for name, value in later.shift.csi.items() if value >= LARGE]
    if large:
        remarks.append(f"Large shift since the training: {', '.join(large)}.")
    if later.shift.psi is not None and later.shift.psi >= LARGE:
        remarks.append("Large shift of the score since the training.")
    if model.left_out:
        n = len(model.left_out)
        remarks.append(f"{n:,} {'column has' if n == 1 else 'columns have'} no weight; see Data and preparation.")
    return remarks


def _falls(sets: Sequence[Evaluated]) -> list[str]:
    """Return a remark for each set on which the AUC is below the interval of the first set."""
    first = sets[0].intervals.auc if sets and sets[0].intervals is not None else None
    if first is None:
        return []
    return [
        f"The AUC on the {each.title}, {number(each.figure('auc'), 3)}, is below the 95% interval of that on the"
        f" {sets[0].title}."
        for each in sets[1:]
        if (auc := each.figure("auc")) is not None and auc < first[0]
    ]
