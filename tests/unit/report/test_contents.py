"""What a report says of bins, files and settings, before it becomes a page."""

import json
from pathlib import Path

import pytest

from tests.support.finished_job import JOB, RUN, write_job
from tests.unit.data.test_scorecard import make_part
from trilateral.common.base.errors import ConfigError, DataError
from trilateral.common.base.roles import Role
from trilateral.common.config.job import JobConfig
from trilateral.common.config.process import ProcessConfig
from trilateral.common.data.model.bin_figures import BinFigures
from trilateral.common.data.model.bins_file import BinsFile, HostColumn, save_bins
from trilateral.common.data.preprocessing.bins import Bin, BinnedNumber
from trilateral.common.jobs.folder import JobFolder
from trilateral.common.observe.audit import LOG
from trilateral.common.protocol.messages import Kind
from trilateral.common.report.bins import without_small
from trilateral.common.report.contents import interval, number, significant, size
from trilateral.common.report.disclosures import FORMS, n_bytes, n_values
from trilateral.common.report.job_files import read_job, read_path
from trilateral.common.report.model_sections import p_value, weight_remarks
from trilateral.common.report.page import report_html


@pytest.fixture(scope="module")
def configs(tmp_path_factory: pytest.TempPathFactory) -> dict[Role, ProcessConfig]:
    return write_job(tmp_path_factory.mktemp("contents"))


def _bins(*counts: tuple[int, int]) -> list[BinFigures]:
    total = sum(n for n, _ in counts)
    return [BinFigures("age", f"bin {place}", n, n / total, k / n, 0.1, 0.01) for place, (n, k) in enumerate(counts)]


def test_figures_of_bins_with_few_rows_of_a_label_are_left_out() -> None:
    shown = without_small(_bins((100, 9), (100, 50), (100, 30), (100, 91)))
    assert [each.event_rate is None for each in shown] == [True, False, False, True]
    assert [each.n_rows for each in shown] == [100] * 4
    assert shown[0].woe is shown[0].iv is None


def test_a_single_small_bin_cannot_be_computed_from_the_others() -> None:
    # The number of positive rows in all bins is that of every other column.
    shown = without_small(_bins((100, 9), (100, 50), (100, 30)))
    assert [each.event_rate is None for each in shown] == [True, False, True]


def test_bins_with_enough_rows_of_both_labels_are_shown() -> None:
    bins = _bins((20, 10), (100, 50))
    assert without_small(bins) == bins


def test_the_files_of_a_job_have_the_lines_of_its_run_alone(configs: dict[Role, ProcessConfig]) -> None:
    files = read_job(configs[Role.HOST], JOB)
    assert files.run_id == RUN
    assert len(files.audit) == 3
    assert n_bytes(files.sent) == 123_456
    assert n_values(files.received, "holdout_scores") == 1000
    assert files.ended.endswith(" UTC")
    assert files.ledger["people"].equations == 28


def test_the_coordinator_shows_the_newest_run_of_a_name(tmp_path: Path) -> None:
    config = write_job(tmp_path)[Role.COORDINATOR]
    with (config.state / LOG).open("a") as file:
        file.write(json.dumps({"decision": "allowed", "method": "StartJob", "job": JOB, "run": "ef" * 16}) + "\n")
        file.write('{"torn')
    files = read_job(config, JOB)
    assert files.run_id == "ef" * 16
    assert len(files.audit) == 1


def test_a_report_of_a_file_on_its_own_needs_no_configuration(configs: dict[Role, ProcessConfig]) -> None:
    path = JobFolder(configs[Role.GUEST].state, JOB).model
    for files in (read_path(path), read_path(path.parent)):
        assert files.role is Role.GUEST
        assert len(files.history) == 4
        assert not files.audit
        assert files.run_id == RUN


def test_a_running_job_has_a_history_at_the_coordinator(tmp_path: Path) -> None:
    config = write_job(tmp_path)[Role.COORDINATOR]
    folder = JobFolder(config.state, JOB)
    folder.history.rename(folder.unfinished_history)
    assert len(read_job(config, JOB).history) == 4


def test_a_job_that_has_not_begun_is_named(configs: dict[Role, ProcessConfig]) -> None:
    for role in Role:
        with pytest.raises(DataError, match="other-1"):
            read_job(configs[role], "other-1")


def test_later_rows_need_a_model(configs: dict[Role, ProcessConfig]) -> None:
    from trilateral.common.report.later_rows import LaterRows

    with pytest.raises(ConfigError, match="only a party's part of a model"):
        report_html(configs[Role.COORDINATOR], JOB, LaterRows(scores=Path("scores.csv")))


def test_the_report_of_a_bins_job_has_the_bins_of_both_parties(configs: dict[Role, ProcessConfig]) -> None:
    folder = JobFolder(configs[Role.GUEST].state, "bins-1")
    own = BinnedNumber(name="age", bins=[Bin(n_rows=100, n_positive=30), Bin(n_rows=200, n_positive=30)], bounds=[40.0])
    bins = BinsFile(
        role=Role.GUEST,
        job=JobConfig(name="bins-1", dataset="people", protocol="shares", task="bins"),
        run_id="0" * 32,
        table="",
        ids="",
        train="00" * 32,
        n_train=300,
        columns=[own],
        left_out={"branch": "`method: none`"},
        host_columns=[HostColumn(bins=[Bin(n_rows=100, n_positive=20), Bin(n_rows=200, n_positive=40)])],
    )
    save_bins(folder.bins, bins)
    page = report_html(configs[Role.GUEST], "bins-1")
    for text in ("column 1 of the host", "Information value", "Columns without bins", "&gt;= 40", "30.0%"):
        assert text in page


def test_every_kind_of_vector_has_a_form() -> None:
    assert set(FORMS) == {*Kind, "holdout_scores", "row_roles"}


def test_a_reviewer_is_told_of_weights_that_contradict_their_bins() -> None:
    part, _ = make_part(Role.GUEST, ["age", "debt"])
    weights = dict.fromkeys(part.weights, 1.0) | {"debt WOE": -1.0}
    remarks = weight_remarks(part.model_copy(update={"weights": weights}))
    assert any("Negative weight of debt WOE" in remark for remark in remarks)


def test_numbers_are_written_for_people() -> None:
    minus = "\N{MINUS SIGN}"
    assert number(-0.12345) == f"{minus}0.1235"
    assert number(-0.00004) == "0.0000"
    assert number(1e12, 2) == "1e+12"
    assert number(None) == significant(None) == "\N{EN DASH}"
    assert significant(-1234567.0) == f"{minus}1.235e+06"
    assert interval((0.1, 0.25)) == "0.100 to 0.250"
    assert interval(None) == ""
    assert [size(n) for n in (0, 999, 1000, 123_456, 10**9, 5 * 10**15)] == [
        "0 B",
        "999 B",
        "1 kB",
        "123 kB",
        "1 GB",
        "5e+03 TB",
    ]
    assert [p_value(p) for p in (0.5, 1e-9)] == ["0.5000", "< 0.0001"]
