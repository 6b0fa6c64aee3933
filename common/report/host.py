"""What the host's report of a model says."""

import math

from trilateral.common.data.model.distributions import LARGE
from trilateral.common.data.model.model_file import PartyModel
from trilateral.common.report.bins import bins_section
from trilateral.common.report.contents import Block, Figure, Report, Section, size
from trilateral.common.report.disclosures import disclosures_section, n_bytes, n_values
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
from trilateral.common.report.training import training_section


def host_report(files: JobFiles, model: PartyModel, later: Later) -> Report:
    """Return the report of a model at the host, which knows its own columns and weights alone.

    Args:
        files: the files of the job.
        model: the host's part.
        later: what is known about rows after the training.
    """
    max_points = None
    if files.config is not None:
        max_points = math.ceil(model.steps.n_row_values / files.config.policy.min_columns_per_point)
    parts = model.parts
    terms = [
        terms_section(
            part,
            prefix="" if len(parts) == 1 else f"class-{place}-",
            title="Terms and weights" if len(parts) == 1 else f"Class {place} against the rest",
        )
        for place, part in enumerate(parts, 1)
    ]
    sections = [
        Section("summary", "Summary", _summary(model, later)),
        data_section(model),
        *terms,
        bins_section(model),
        stability_section(model, later),
        training_section(files),
        disclosures_section(files, max_points=max_points),
        settings_section(files),
    ]
    figures = [
        Figure("Training rows", f"{model.data.n_train:,}"),
        Figure("Own terms", f"{len(model.weights):,}"),
        Figure("Rounds", f"{model.rounds:,}"),
    ]
    if files.audit:
        figures.append(Figure("Sent", size(n_bytes(files.sent)), "in this job"))
        figures.append(Figure("Scores given", f"{n_values(files.sent, 'holdout_scores'):,}", "of evaluation rows"))
    return Report(
        title=f"Model {files.job}",
        role="host",
        lead="A logistic regression on the columns of two organisations, as the host sees it: its own terms and"
        " columns, and what left its process. The host knows neither the labels nor the quality of the model.",
        figures=figures,
        sections=[each for each in sections if each is not None],
        identity=files.identity,
    )


def _summary(model: PartyModel, later: Later) -> list[Block]:
    remarks = weight_remarks(model)
    large = [name for name, value in later.shift.csi.items() if value >= LARGE]
    if large:
        remarks.append(f"Large shift since the training: {', '.join(large)}.")
    return [*overview(model), *remarks_of(remarks)]
