"""The page of a report: what it holds at each role, and that nothing from a table becomes markup."""

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.support.finished_job import (
    FORMULA,
    ID,
    JOB,
    MARKUP,
    N_ROWS,
    NEGATIVE,
    POSITIVE,
    RUN,
    SCRIPT,
    SECRET,
    table_of,
    write_job,
)
from trilateral.common.base.errors import ConfigError, DataError
from trilateral.common.base.outcome import Outcome
from trilateral.common.base.roles import PARTIES, Role
from trilateral.common.config.job import JobConfig
from trilateral.common.config.process import ProcessConfig
from trilateral.common.data.model.model_file import Classes, ClassPart, load_model, save_model
from trilateral.common.data.preprocessing.few_rows import MIN_ROWS
from trilateral.common.jobs.folder import JobFolder
from trilateral.common.jobs.journal import JOURNAL, Journal
from trilateral.common.report.page import report_html


class Parsed(HTMLParser):
    """The elements and the visible texts of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self._within: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._within.append(tag)

    def handle_endtag(self, tag: str) -> None:
        while self._within and self._within.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if self._within and self._within[-1] not in {"script", "style"}:
            self.texts.append(data)

    @property
    def text(self) -> str:
        """All visible text on one line."""
        return " ".join(" ".join(self.texts).split())

    @property
    def ids(self) -> list[str]:
        return [str(each["id"]) for _, each in self.elements if "id" in each]


@pytest.fixture(scope="module")
def configs(tmp_path_factory: pytest.TempPathFactory) -> dict[Role, ProcessConfig]:
    return write_job(tmp_path_factory.mktemp("report"))


@pytest.fixture(scope="module")
def binned(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The guest's report of a model on bins."""
    folder = tmp_path_factory.mktemp("binned")
    return report_html(write_job(folder, preprocessing={"binning": {"max_bins": 4}})[Role.GUEST], JOB)


@pytest.fixture(scope="module")
def pages(configs: dict[Role, ProcessConfig], binned: str) -> dict[str, str]:
    return {role.value: report_html(config, JOB) for role, config in configs.items()} | {"binned": binned}


def _sections(parsed: Parsed) -> list[str]:
    return [str(each["id"]) for tag, each in parsed.elements if tag == "section"]


def test_the_guest_sees_the_quality_of_the_whole_model_and_its_own_part(pages: dict[str, str]) -> None:
    parsed = Parsed(pages["guest"])
    wanted = [
        "summary",
        "data",
        "quality",
        "quality-holdout",
        "calibration",
        "threshold",
        "terms",
        "search",
        "training",
    ]
    assert _sections(parsed) == [*wanted, "disclosures", "settings"]
    charts = [texts["id"] for tag, texts in parsed.elements if tag == "title" and "id" in texts]
    names = {str(each).removesuffix("-title").removeprefix("holdout-") for each in charts}
    assert names >= {"roc", "pr", "ks", "scores", "gain", "lift", "calibration", "coefficients", "seconds", "path"}
    for text in ("AUC", "Gini", "Brier score", RUN, "Terms and weights", "1,000", "calibrated by Platt", "VIF", "AIC"):
        assert text in parsed.text


def test_the_host_sees_no_labels_and_no_quality(pages: dict[str, str]) -> None:
    parsed = Parsed(pages["host"])
    assert _sections(parsed) == ["summary", "data", "terms", "training", "disclosures", "settings"]
    for text in ("AUC", "ROC", "KS", "Brier", "positive rows", "rarer label"):
        assert text not in parsed.text
    assert "columns of all rows guest under a random mask masked_columns 123 kB" in parsed.text
    assert "1 of 2" in parsed.text or "1 of 1" in parsed.text  # points of the ledger and their limit


def test_the_coordinator_sees_losses_times_and_bytes(pages: dict[str, str]) -> None:
    parsed = Parsed(pages["coordinator"])
    assert _sections(parsed) == ["training", "disclosures", "settings"]
    assert "Loss by round: 0.6 in round 1 and 0.2 in round 3" in parsed.text
    assert "2 2 2 0.300000 1.500 100 B 2 MB" in parsed.text  # round 2, attempt 2
    for text in (MARKUP.split()[0], "branch", "weight of"):
        assert text not in parsed.text.replace(f"the policy refuses it: {MARKUP}", "")


@pytest.mark.parametrize("name", ["guest", "host", "coordinator", "binned"])
def test_no_name_category_or_reason_becomes_markup(pages: dict[str, str], name: str) -> None:
    parsed = Parsed(pages[name])
    tags = {tag for tag, _ in parsed.elements}
    assert not tags & {"img", "iframe", "object", "embed", "form", "a:href", "base", "foreignobject", "image"}
    assert sum(tag == "script" for tag, _ in parsed.elements) == 1
    assert sum(tag == "style" for tag, _ in parsed.elements) == 1
    for _, attributes in parsed.elements:
        assert not any(each.startswith("on") or each == "style" for each in attributes)
        for target in (attributes.get("href"), attributes.get("src")):
            assert target is None or target.startswith(("#", "data:,"))
    assert MARKUP in parsed.text  # It is shown as it is.


def test_formulas_and_closing_tags_are_shown_as_they_are(pages: dict[str, str]) -> None:
    for name in ("guest", "binned"):
        text = Parsed(pages[name]).text
        assert FORMULA in text
        assert SCRIPT in text


@pytest.mark.parametrize("name", ["guest", "host", "coordinator", "binned"])
def test_no_id_label_or_value_of_a_row_is_in_a_page(pages: dict[str, str], name: str) -> None:
    page = pages[name]
    for secret in (ID, POSITIVE, NEGATIVE, f"{SECRET}", f"{SECRET:.0f}"):
        assert secret not in page
    values = table_of(Role.GUEST)[f"guest {MARKUP}"].astype(str)
    assert not [value for value in values if value in page]


@pytest.mark.parametrize("name", ["guest", "host", "coordinator", "binned"])
def test_the_policy_permits_the_pages_own_style_and_script_alone(pages: dict[str, str], name: str) -> None:
    page = pages[name]
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]+)"', page)
    assert policy is not None
    rules = policy[1].replace("&#39;", "'")
    assert rules.startswith("default-src 'none';")
    for tag in ("style", "script"):
        content = re.search(f"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        assert content is not None
        digest = base64.b64encode(hashlib.sha256(content[1].encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in rules
    assert "unsafe" not in rules


@pytest.mark.parametrize("name", ["guest", "host", "coordinator", "binned"])
def test_a_page_is_accessible_without_looking(pages: dict[str, str], name: str) -> None:
    parsed = Parsed(pages[name])
    assert len(parsed.ids) == len(set(parsed.ids))
    levels = [int(tag[1]) for tag, _ in parsed.elements if re.fullmatch(r"h\d", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    ids = set(parsed.ids)
    for tag, attributes in parsed.elements:
        if tag == "a":
            assert str(attributes["href"])[1:] in ids
        if tag == "svg":
            assert attributes["role"] == "img"
        if tag == "th":
            assert attributes["scope"] in {"row", "col"}
    assert not re.search(r"<th[^>]*></th>", pages[name])
    regions = [each["aria-label"] for _, each in parsed.elements if each.get("role") == "region"]
    assert len(regions) == len(set(regions))
    tables = sum(tag == "table" for tag, _ in parsed.elements)
    assert tables == sum(tag == "caption" for tag, _ in parsed.elements)


def _thresholds(page: str) -> dict[str, Any]:
    parsed = Parsed(page)
    (data,) = [each["data-thresholds"] for _, each in parsed.elements if "data-thresholds" in each]
    assert data is not None
    thresholds: dict[str, Any] = json.loads(data)
    return thresholds


def test_the_slider_has_the_rows_above_each_threshold(
    pages: dict[str, str], configs: dict[Role, ProcessConfig]
) -> None:
    model = load_model(JobFolder(configs[Role.GUEST].state, JOB).model)
    groups = model.evaluation_sets[0].score_groups
    assert groups is not None
    shown = _thresholds(pages["guest"])
    assert shown["score"] == groups.bounds
    for place in (0, len(groups.bounds) // 2, len(groups.bounds) - 1):
        found = groups.confusion(place)
        assert shown["true_positive"][place] == found.true_positive
        assert shown["false_positive"][place] == found.false_positive
    assert shown["probability"] == sorted(shown["probability"])


def test_no_count_of_a_label_in_a_page_is_of_few_rows(pages: dict[str, str]) -> None:
    shown = _thresholds(pages["guest"])
    for name, total in (("true_positive", shown["n_positive"]), ("false_positive", shown["n_negative"])):
        steps = [total, *shown[name], 0]
        assert all(before - after >= MIN_ROWS for before, after in pairwise(steps))


def test_a_model_file_of_an_older_release_has_figures_and_says_why_there_are_no_charts(tmp_path: Path) -> None:
    config = write_job(tmp_path)[Role.GUEST]
    path = JobFolder(config.state, JOB).model
    model = load_model(path)
    for sets in ([], [model.evaluation_sets[0].model_copy(update={"score_groups": None})]):
        save_model(path, model.model_copy(update={"evaluation_sets": sets}))
        parsed = Parsed(report_html(config, JOB))
        assert "AUC" in parsed.text
        assert "These rows have no charts" in parsed.text
        assert "threshold" not in _sections(parsed)


@pytest.mark.parametrize("role", [Role.HOST, Role.COORDINATOR])
def test_a_stopped_job_has_a_report_of_what_is_known(tmp_path: Path, role: Role) -> None:
    config = write_job(tmp_path)[role]
    folder = JobFolder(config.state, JOB)
    folder.model.unlink(missing_ok=True)
    folder.history.rename(folder.unfinished_history)
    journal = Journal(config.state, role, 30)
    journal.add(bytes.fromhex(RUN), JobConfig(name=JOB, dataset="people", l2=0.375))
    journal.set_outcome(bytes.fromhex(RUN), Outcome.STOPPED, f"an operator has stopped it: {MARKUP}")
    journal.close()
    parsed = Parsed(report_html(config, JOB))
    assert f"stopped: an operator has stopped it: {MARKUP}" in parsed.text
    assert "0.375" in parsed.text
    assert {"training", "disclosures", "settings"} <= set(_sections(parsed))
    assert ("this process has no result" in parsed.text.lower()) == (role is Role.HOST)


def test_a_damaged_journal_or_another_run_in_it_does_not_change_the_report_of_a_model(tmp_path: Path) -> None:
    config = write_job(tmp_path)[Role.HOST]
    journal = Journal(config.state, Role.HOST, 30)
    journal.add(bytes(16), JobConfig(name=JOB, dataset="people"))
    journal.set_outcome(bytes(16), Outcome.FAILED, "the other run failed")
    journal.close()
    assert "the other run failed" not in report_html(config, JOB)
    (config.state / JOURNAL).write_bytes(b"no database" * 100)
    assert "Terms and weights" in report_html(config, JOB)


@pytest.mark.parametrize("role", Role)
def test_an_unknown_job_is_refused_with_the_way_out(tmp_path: Path, role: Role) -> None:
    config = write_job(tmp_path)[role]
    with pytest.raises(DataError, match="knows no job nosuch: name a job that has begun"):
        report_html(config, "nosuch")
    with pytest.raises(ConfigError, match="no name of a job: to name a file or a folder, leave out --config"):
        report_html(config, f"../{JOB}")


def test_a_penalty_that_was_chosen_by_auc_is_shown_with_the_auc_of_all(tmp_path: Path) -> None:
    configs = write_job(tmp_path)
    path = JobFolder(configs[Role.GUEST].state, JOB).model
    model = load_model(path)
    search = [each.model_copy(update={"auc": 0.71, "auc_error": 0.02}) for each in model.search]
    save_model(path, model.model_copy(update={"search": search}))
    parsed = Parsed(report_html(configs[Role.GUEST], JOB))
    assert "AUC of 2 penalties on the folds. The highest is 0.71." in parsed.text
    assert "log loss std. error AUC std. error columns choice" in parsed.text
    assert "0.50000 0.01000 0.71000 0.02000 3.0 chosen" in parsed.text


def test_a_model_of_classes_has_a_section_for_each_and_hides_small_counts(tmp_path: Path) -> None:
    configs = write_job(tmp_path)
    for role in PARTIES:
        path = JobFolder(configs[role].state, JOB).model
        model = load_model(path)
        part = ClassPart(**{name: getattr(model, name) for name in ClassPart.model_fields})
        few = part.model_copy(
            update={
                "evaluation_sets": [each.model_copy(update={"score_groups": None}) for each in part.evaluation_sets]
            }
        )
        names = ["own", MARKUP, "free"] if role is Role.GUEST else None
        classes = Classes.model_validate(
            {
                "parts": [part, part, few],
                "names": names,
                "calibration": {"method": "normalised", "reason": "the dataset says so"} if names else None,
                "metrics": {
                    "n_rows": 1000,
                    "log_loss": 0.9,
                    "accuracy": 0.6,
                    "auc": [0.7, 0.8, None],
                    "confusion": [[304, 7, 16], [30, 200, 40], [90, 3, 310]],
                }
                if names
                else None,
            }
        )
        save_model(path, model.model_copy(update={"classes": classes, "inference": None, "search": []}))
        parsed = Parsed(report_html(configs[role], JOB))
        parts = ["terms"] if role is Role.HOST else ["class", "holdout", "threshold", "terms"]
        wanted = [f"class-{place}-{part}" for place in (1, 2, 3) for part in parts]
        if role is Role.GUEST:
            wanted.remove("class-3-threshold")
        assert [name for name in _sections(parsed) if name.startswith("class-")] == wanted
        assert len(parsed.ids) == len(set(parsed.ids))
        if role is Role.GUEST:
            assert "own 300 < 10 20 0.700" in parsed.text
            assert parsed.text.count("These rows have no charts") == 1


def test_a_report_of_a_million_rows_is_not_larger(pages: dict[str, str]) -> None:
    # At most 200 groups, whatever the number of rows: what a page holds of the rows does not grow with them.
    assert len(_thresholds(pages["guest"])["score"]) < 200
    assert N_ROWS > 1000
    assert len(pages["guest"]) < 1_000_000


@pytest.fixture
def without_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    import builtins

    real = builtins.__import__

    def refuse(name: str, *arguments: object, **others: object) -> object:
        if name == "jinja2":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return real(name, *arguments, **others)  # type: ignore[arg-type]

    monkeypatch.setattr(builtins, "__import__", refuse)


def test_a_missing_library_is_named_with_its_way_out(configs: dict[Role, ProcessConfig], without_extra: None) -> None:
    from trilateral.common.base.errors import ConfigError

    with pytest.raises(ConfigError, match=r"needs jinja2, .*pip install 'trilateral\[report\]'"):
        report_html(configs[Role.HOST], JOB)
