"""The guest's report of a model of several classes: thresholds and groups of each class, also of later rows."""

import json
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import brier_score_loss, confusion_matrix, log_loss
from typer.testing import CliRunner
from typer.testing import Result as Ran

from trilateral.cli.main import app
from trilateral.common.base.roles import Role
from trilateral.common.config.dataset import DatasetConfig, LabelConfig
from trilateral.common.config.job import JobConfig
from trilateral.common.data.model.classes import class_probabilities
from trilateral.common.data.model.model_file import PartyModel, load_model, save_model
from trilateral.common.data.party_data import load_party_data
from trilateral.common.data.preprocessing.few_rows import MIN_ROWS
from trilateral.common.protocol.messages import Result
from trilateral.common.report.classes import class_sections
from trilateral.common.report.contents import NO_FIGURE, Facts, Table, Thresholds
from trilateral.common.report.later_rows import Later, LaterRows, look_at_later

N = 2400
CLASSES = ["own", "rent", "<b>free</b>"]
CONFIG = """role: guest
plaintext: true
listen: 127.0.0.1:1
peers: {host: 127.0.0.1:2, coordinator: 127.0.0.1:3}
state: state
datasets:
  march: {path: march.csv, label: {column: home, classes: [rent, <b>free</b>, own]}}
  two: {path: march.csv, label: {column: home, positive: own, negative: rent}}
  others: {path: march.csv, label: {column: home, classes: [own, rent, shared]}}
"""


def _people(seed: int, shift: float = 0.0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    table = pd.DataFrame({"id": [f"person-{row}" for row in range(N)], "age": rng.normal(shift, 1, N)})
    table["debt"] = rng.normal(size=N)
    odds = np.stack([1.5 * table["age"], 1.5 * table["debt"], np.full(N, -0.5)], axis=1) + rng.gumbel(size=(N, 3))
    table["home"] = np.array(CLASSES)[odds.argmax(axis=1)]
    return table


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The guest's files after a job of three classes, and the scores of later rows."""
    folder = tmp_path_factory.mktemp("classes")
    _people(1).to_csv(folder / "people.csv", index=False)
    dataset = DatasetConfig(path=folder / "people.csv", label=LabelConfig(column="home", classes=CLASSES))
    job = JobConfig(name="homes", dataset="people", holdout=0.5, protocol="shares", classes=3)
    data = load_party_data(dataset, job, labelled=True)
    assert data.preprocessing.directions is not None
    weights = np.array([[1.2, -0.5], [-0.5, 1.2], [-0.6, -0.6]])
    coef = [np.append(np.linalg.solve(data.preprocessing.directions, each), -0.7) for each in weights]
    scores = np.concatenate([np.asarray(data.block.holdout_columns) @ each for each in coef])
    result = Result(np.concatenate(coef), 0.5, 7, 3, "converged", scores)
    model = PartyModel.of(Role.GUEST, job, data, dataset, result, run_id="ab" * 16)
    save_model(folder / "state/jobs/homes/model.json", model)
    march = _people(2, shift=0.5)
    march.to_csv(folder / "march.csv", index=False)
    assert model.classes is not None
    assert model.classes.calibration is not None
    u = march[["age", "debt"]].to_numpy() @ weights.T - 0.7
    p = class_probabilities(u, model.classes.calibration)
    written = pd.DataFrame({"id": march["id"], "class": np.array(CLASSES)[p.argmax(axis=1)]})
    for place, name in enumerate(CLASSES):
        written[f"score_{name}"], written[f"probability_{name}"] = u[:, place], p[:, place]
    written.iloc[::-1].to_csv(folder / "scores.csv", index=False)
    (folder / "guest.yaml").write_text(CONFIG.replace("path: march", f"path: {folder}/march"))
    return folder


@pytest.fixture(scope="module")
def model(folder: Path) -> PartyModel:
    return load_model(folder / "state/jobs/homes/model.json")


@pytest.fixture(scope="module")
def later(folder: Path, model: PartyModel) -> Later:
    label = LabelConfig(column="home", classes=CLASSES[::-1])
    dataset = DatasetConfig(path=folder / "march.csv", label=label)
    return look_at_later(model, LaterRows(scores=folder / "scores.csv", labels=("march", dataset)))


def run(folder: Path, monkeypatch: pytest.MonkeyPatch, *arguments: object) -> Ran:
    monkeypatch.chdir(folder)
    words = ["report", "homes", "--config", "guest.yaml", *map(str, arguments)]
    return CliRunner().invoke(app, words, env={"COLUMNS": "120"})


class Thresholded(HTMLParser):
    """The thresholds of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: dict[str, dict[str, Any]] = {}
        self.names: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = dict(attrs)
        if "id" in names:
            self.names.append(str(names["id"]))
        if names.get("data-thresholds"):
            self.found[str(names["data-prefix"])] = json.loads(str(names["data-thresholds"]))


def test_a_report_has_thresholds_of_each_class_and_later_rows(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = ("--dataset", "march", "--scores", "scores.csv", "--labels", "march", "--out", "report.html")
    done = run(folder, monkeypatch, *options)
    assert done.exit_code == 0, done.output
    page = (folder / "report.html").read_text()
    read = Thresholded(page)
    assert list(read.found) == ["class-1-", "class-2-", "class-3-"]
    assert len(read.names) == len(set(read.names))
    assert {"class-1-holdout", "class-1-threshold", "class-1-later", "class-3-terms", "stability"} <= {*read.names}
    for text in ("scored rows of march", "Hosmer-Lemeshow", "score of class rent", "Later rows of each class"):
        assert text in page
    for text in ("person-", "<b>"):
        assert text not in page


def test_each_row_counts_in_the_thresholds_of_one_class_and_no_count_is_of_few_rows(model: PartyModel) -> None:
    assert model.classes is not None
    shown = [
        block
        for section in class_sections(model, model.classes, Later(look_at_later(model, LaterRows()).shift))
        for part in section.sections
        for block in part.blocks
        if isinstance(block, Thresholds)
    ]
    assert len(shown) == 3
    assert sum(each.n_positive + each.n_negative for each in shown) == model.data.n_holdout
    for each in shown:
        for counts, total in ((each.true_positive, each.n_positive), (each.false_positive, each.n_negative)):
            steps = [total, *counts, 0]
            assert all(before - after >= MIN_ROWS for before, after in pairwise(steps))


def test_figures_of_later_rows_are_those_of_scikit_learn(folder: Path, later: Later) -> None:
    rows = pd.read_csv(folder / "scores.csv").merge(pd.read_csv(folder / "march.csv"), on="id")
    p = rows[[f"probability_{name}" for name in CLASSES]].to_numpy()
    metrics = later.class_metrics
    assert metrics is not None
    y = [CLASSES.index(each) for each in rows["home"]]
    assert metrics.log_loss == pytest.approx(log_loss(y, p))
    assert metrics.confusion == confusion_matrix(y, p.argmax(axis=1)).tolist()
    for place, labelled in enumerate(later.of_classes):
        is_positive = np.array(y) == place
        found = labelled.evaluated.metrics
        assert found.log_loss == pytest.approx(log_loss(is_positive, p[:, place]))
        assert found.brier == pytest.approx(brier_score_loss(is_positive, p[:, place]))
        assert labelled.drift.ratio == pytest.approx(is_positive.sum() / p[:, place].sum())


def test_thresholds_are_on_the_probability_among_all_classes(model: PartyModel) -> None:
    assert model.classes is not None
    for part in model.parts:
        (of_set,) = part.evaluation_sets
        groups = of_set.score_groups
        assert groups is not None
        n = groups.n_rows
        predicted = float(np.average(groups.mean_probability, weights=n))
        # Probabilities of a softmax have the rates of the classes, up to the rows that the groups do not count.
        assert predicted == pytest.approx(groups.rate, abs=0.05)
        assert np.all(np.diff(groups.mean_probability) > 0)
        assert part.metrics == of_set.metrics


def test_the_shift_of_each_class_needs_scores_alone(folder: Path, model: PartyModel) -> None:
    looked = look_at_later(model, LaterRows(scores=folder / "scores.csv"))
    assert [each is not None and each == round(each, 2) for each in looked.shift.of_classes] == [True] * 3
    assert looked.shift.psi == max(each for each in looked.shift.of_classes if each is not None)
    assert not looked.of_classes


def test_no_figure_says_how_few_rows_have_a_class(folder: Path, model: PartyModel) -> None:
    table = pd.read_csv(folder / "march.csv")
    rare = table.index[table["home"] == "rent"]
    kept = table.drop(rare[MIN_ROWS - 1 :])
    kept.to_csv(folder / "few.csv", index=False)
    dataset = DatasetConfig(path=folder / "few.csv", label=LabelConfig(column="home", classes=CLASSES))
    looked = look_at_later(model, LaterRows(scores=folder / "scores.csv", labels=("few", dataset)))
    assert model.classes is not None
    # Those of the other classes, too: the number of all rows is known.
    for section in class_sections(model, model.classes, looked)[1:]:
        facts = [block for block in section.blocks if isinstance(block, Facts)]
        assert [each.rows for each in facts] == [[("figures", "none: fewer than 10 rows of a label")]]
        (figures,) = (block for block in section.blocks if isinstance(block, Table))
        (rates,) = (row[1:] for row in figures.rows if row[0] == "positive rows")
        assert rates[0].endswith("%")
        assert rates[1] == "fewer than 10 rows of a label"
        aucs = [row[2] for row in figures.rows if row[0] == "AUC"]
        assert (aucs == [NO_FIGURE]) is ("class rent" in figures.caption)
    (of_all,) = (block for block in class_sections(model, model.classes, looked)[0].blocks[1:])
    assert isinstance(of_all, Table)
    assert [row[-1] == NO_FIGURE for row in of_all.rows] == [name == "rent" for name in CLASSES]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--scores", "scores.csv", "--labels", "two"], "the label has other classes than the model"),
        (["--scores", "scores.csv", "--labels", "others"], "the label has other classes than the model"),
        (["--scores", "march.csv"], "march.csv has no IDs with columns 'score_own', 'score_rent' and 'score_<b>free"),
    ],
)
def test_refusals_name_what_is_missing(
    folder: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], says: str
) -> None:
    done = run(folder, monkeypatch, *arguments, "--out", "new.html")
    assert done.exit_code in (1, 2)
    assert says in " ".join(done.output.split())
