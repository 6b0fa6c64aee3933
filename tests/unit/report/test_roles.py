"""What the reports of the parties say about models of all kinds, before they become pages."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.finished_job import FORMULA, JOB, MARKUP, write_job
from trilateral.common.base.errors import ConfigError, DataError
from trilateral.common.base.roles import Role
from trilateral.common.config.process import ProcessConfig
from trilateral.common.data.model.calibration import InterceptOnly
from trilateral.common.data.model.distributions import Shift
from trilateral.common.data.model.inference import ChiSquareTest
from trilateral.common.data.model.model_file import PartyModel
from trilateral.common.report.contents import Block, Facts, Points, Report, Section, Table, Text
from trilateral.common.report.guest import guest_report
from trilateral.common.report.host import host_report
from trilateral.common.report.job import job_report
from trilateral.common.report.job_files import JobFiles, read_job
from trilateral.common.report.later_rows import Later, LaterRows, look_at_later, stability_section
from trilateral.common.report.model_sections import data_section, terms_section
from trilateral.common.report.quality import calibration_section, evaluated_sets
from trilateral.common.report.training import training_section

NO_LATER = Later(Shift(0, {}))


@pytest.fixture(scope="module")
def configs(tmp_path_factory: pytest.TempPathFactory) -> dict[Role, ProcessConfig]:
    return write_job(tmp_path_factory.mktemp("roles"))


@pytest.fixture(scope="module")
def files(configs: dict[Role, ProcessConfig]) -> dict[Role, JobFiles]:
    return {role: read_job(config, JOB) for role, config in configs.items()}


def model_of(files: dict[Role, JobFiles], role: Role, **update: Any) -> PartyModel:
    model = files[role].model
    assert model is not None
    return model.model_copy(update=update)


def blocks_of(sections: Iterator[Section] | list[Section]) -> Iterator[Block]:
    for section in sections:
        yield from section.blocks
        yield from blocks_of(list(section.sections))


def text_of(source: Report | Section) -> str:
    """All texts of a report, one a line."""
    texts: list[str] = []
    for block in blocks_of(list(source.sections) if isinstance(source, Report) else [source]):
        match block:
            case Text(text=text):
                texts.append(text)
            case Points(texts=points):
                texts += points
            case Facts(rows=rows) | Table(rows=rows):
                texts += [" | ".join(row) for row in rows]
    return "\n".join(texts)


def test_a_model_without_hold_out_rows_says_so(files: dict[Role, JobFiles]) -> None:
    calibration = InterceptOnly(b=0.1, reason="there are no hold-out rows")
    model = model_of(
        files, Role.GUEST, metrics=None, evaluation_sets=[], calibration=calibration, calibration_report=None
    )
    report = guest_report(files[Role.GUEST], model, NO_LATER)
    assert not report.figures
    text = text_of(report)
    assert "There are no hold-out rows: nothing says how good the model is" in text
    assert "Probabilities are calibrated on average only" in text
    assert "p = 1 / (1 + exp(-(u + 0.1)))" in text


def test_a_reviewer_is_told_what_is_unusual(files: dict[Role, JobFiles]) -> None:
    model = model_of(files, Role.GUEST)
    (first,) = model.evaluation_sets
    worse = first.model_copy(
        update={
            "name": "out_of_time",
            "metrics": replace(first.metrics, auc=0.51, n_rows=200, n_positive=20),
            "score_groups": None,
        }
    )
    job = model.job.model_copy(update={"patience": 3, "protocol": "paillier"})
    changed = model.model_copy(update={"evaluation_sets": [first, worse], "job": job, "left_out": {}})
    later = Later(Shift(2000, {"age": 0.4}, 2000, 0.3))
    text = text_of(guest_report(files[Role.GUEST], changed, later))
    for remark in (
        "The training minimised the Taylor loss",
        "Few rows of the rarer label on the out-of-time set",
        "The hold-out rows also decided when the training stopped",
        "The AUC on the out-of-time set, 0.510, is below the 95% interval of that on the hold-out rows.",
        "Large shift since the training: age.",
        "Large shift of the score since the training.",
    ):
        assert remark in text
    host = text_of(host_report(files[Role.HOST], model_of(files, Role.HOST), later))
    assert "Large shift since the training: age." in host
    assert "score" not in [line.split(" | ")[0] for line in host.splitlines()]


def test_without_anything_unusual_the_report_says_so(files: dict[Role, JobFiles]) -> None:
    model = model_of(files, Role.GUEST, left_out={}, inference=None)
    text = text_of(guest_report(files[Role.GUEST], model, NO_LATER))
    assert "The report has found nothing unusual" in text
    assert "For a reviewer" not in text


def test_files_of_an_older_release_have_no_intervals(files: dict[Role, JobFiles]) -> None:
    model = model_of(files, Role.GUEST, evaluation_sets=[])
    (only,) = evaluated_sets(model)
    assert only.intervals is None
    assert only.groups is None
    report = guest_report(files[Role.GUEST], model, NO_LATER)
    assert [figure.note for figure in report.figures][:5] == [""] * 5


def test_tests_of_columns_and_of_the_model_are_shown(files: dict[Role, JobFiles]) -> None:
    model = model_of(files, Role.GUEST)
    assert model.inference is not None
    assert model.inference.fit is not None
    test = ChiSquareTest.of(12.0, 3)
    fit = model.inference.fit.model_copy(update={"likelihood_ratio": test})
    intercept = next(iter(model.inference.terms.values()))
    inference = model.inference.model_copy(update={"columns": {"branch": test}, "fit": fit, "intercept": intercept})
    text = text_of(terms_section(model.model_copy(update={"inference": inference})))
    assert "branch | 12.00 | 3 | 0.0074" in text
    assert "likelihood-ratio test against an intercept alone | chi-square 12.00 with 3 degrees of freedom" in text
    (row,) = [line for line in text.splitlines() if line.startswith("(intercept)")]
    assert "0.1" in row.split(" | ")


@pytest.mark.parametrize("may_be_separated", [False, True])
def test_the_fit_to_separated_labels_is_marked(files: dict[Role, JobFiles], may_be_separated: bool) -> None:
    model = model_of(files, Role.GUEST)
    assert model.inference is not None
    inference = model.inference.model_copy(update={"may_be_separated": may_be_separated})
    blocks = terms_section(model.model_copy(update={"inference": inference})).blocks
    (caption,) = [block.caption for block in blocks if isinstance(block, Facts)]
    assert caption.startswith("Fit of the whole model")
    assert ("say nothing if features separate the labels" in caption) is may_be_separated


@pytest.mark.parametrize(
    ("preprocessing", "steps"),
    [
        (
            {
                "missing_indicator": True,
                "columns": {
                    f"guest {FORMULA}": {"transform": "log1p"},
                    f"guest {MARKUP}": {"spline": {"knots": 3}},
                    "guest branch": {"encoding": "frequency"},
                },
            },
            ["log1p", "natural spline with 5 knots", "categories by frequency", "standardised"],
        ),
        (
            {"interactions": [[f"guest {FORMULA}", "guest branch"]]},
            [f"product of guest {FORMULA} and guest branch", "a term for each category; reference: "],
        ),
        ({"binning": {"max_bins": 4, "woe": False}}, ["4 bins, a term for each"]),
    ],
)
def test_every_step_of_the_preparation_is_named(
    preprocessing: dict[str, Any], steps: list[str], tmp_path: Path
) -> None:
    model = read_job(write_job(tmp_path, preprocessing=preprocessing)[Role.GUEST], JOB).model
    assert model is not None
    text = text_of(data_section(model))
    assert [step for step in steps if step not in text] == []


def test_evaluations_during_the_training_and_rounds_without_times_are_shown(files: dict[Role, JobFiles]) -> None:
    lines: list[dict[str, Any]] = [
        {"round": 1, "epoch": 1, "loss": 0.5, "evaluation": {"log_loss": 0.61, "auc": None}},
        {"round": 2, "epoch": 2, "loss": 0.4},
    ]
    section = training_section(replace(files[Role.COORDINATOR], history=lines))
    assert section is not None
    assert "1 | 1 | 0.6100 | \N{EN DASH}" in text_of(section)


@pytest.mark.parametrize(("n_positive", "is_shown"), [(9, False), (10, True), (391, False)])
def test_evaluations_on_few_rows_of_a_label_are_left_out(
    files: dict[Role, JobFiles], n_positive: int, is_shown: bool
) -> None:
    evaluation = {"log_loss": 0.6123, "auc": 0.7, "n_rows": 400, "n_positive": n_positive}
    lines: list[dict[str, Any]] = [{"round": 1, "epoch": 1, "loss": 0.5, "evaluation": evaluation}]
    section = training_section(replace(files[Role.GUEST], history=lines))
    assert section is not None
    assert ("0.6123" in text_of(section)) is is_shown


def test_the_log_loss_of_the_calibration_is_left_out_if_few_rows_have_a_label(files: dict[Role, JobFiles]) -> None:
    model = files[Role.GUEST].model
    assert model is not None
    (first, *_) = evaluated_sets(model)
    few = replace(first, metrics=replace(first.metrics, n_positive=7), groups=None)
    shown = [text_of(calibration_section(model, sets)) for sets in ([first], [few])]
    assert ["log loss without calibration" in each for each in shown] == [True, False]


def test_a_job_without_rounds_has_a_report_at_the_coordinator(files: dict[Role, JobFiles]) -> None:
    report = job_report(JobFiles(Role.COORDINATOR, "bins-1"))
    assert "The job had no rounds" in text_of(report)
    assert training_section(replace(files[Role.HOST], history=[])) is None


def test_later_rows_need_distributions_and_scores_of_both_parties(files: dict[Role, JobFiles]) -> None:
    rows = LaterRows(scores=Path("scores.csv"))
    with pytest.raises(DataError, match="no distributions"):
        look_at_later(model_of(files, Role.GUEST, distributions=None), rows)
    with pytest.raises(ConfigError, match="only the guest"):
        look_at_later(model_of(files, Role.HOST), rows)


def test_a_column_called_score_is_not_taken_for_the_score(files: dict[Role, JobFiles]) -> None:
    section = stability_section(model_of(files, Role.GUEST), Later(Shift(2000, {"score": 0.2}, 2000, 0.05)))
    assert section is not None
    rows = [line.split(" | ") for line in text_of(section).splitlines()]
    assert [(row[0], row[1]) for row in rows] == [("score", "0.20"), ("score of the whole model", "0.05")]
