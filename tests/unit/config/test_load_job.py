"""Reading a job: what a good file means, and what a bad one is told."""

import re
from pathlib import Path

import pytest

from trilateral.common.base.errors import ConfigError
from trilateral.common.config.job import INFERENCE_TOLERANCE, JobConfig, Lbfgs, Sqn
from trilateral.common.config.load import load_job

MINIMAL = "name: first\ndataset: credit\n"


@pytest.fixture
def job_file(tmp_path: Path) -> Path:
    return tmp_path / "job.yaml"


def error_of(path: Path) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_job(path)
    return re.sub(r" \(line \d+\)$", "", str(caught.value), flags=re.MULTILINE).split("\n")


def test_two_lines_are_a_whole_job(job_file: Path) -> None:
    job_file.write_text(MINIMAL)
    job = load_job(job_file)
    assert job.name == "first"
    assert job.algorithm == Lbfgs()
    assert job.batch == "all"
    assert job.key_bits == 2048


def test_an_algorithm_has_options_of_its_own(job_file: Path) -> None:
    job_file.write_text(MINIMAL + "algorithm: {name: sqn, memory: 5}\nbatch: 1000\n")
    assert load_job(job_file).algorithm == Sqn(memory=5)


def test_numbers_may_be_in_scientific_notation(job_file: Path) -> None:
    # YAML 1.1 reads 1e-5, without a point, as text.
    job_file.write_text(MINIMAL + "tolerance: 1e-5\n")
    assert load_job(job_file).tolerance == 1e-5


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("epoch: 3", "epoch: unknown key; did you mean epochs?"),
        (
            "colour: red",
            "colour: unknown key; valid keys are algorithm, aligned, batch, choose, cipher, classes, dataset, epochs, "
            "evaluate_every, fold_by, folds, holdout, inference, intercept, key_bits, l1, l2, max_score, name, "
            "one_standard_error, path, patience, protocol, search, seed, slots, start_from, task, tolerance",
        ),
        ("epochs: 1.5", "epochs: expected a whole number, not 1.5"),
        ("epochs: many", "epochs: expected a whole number, not many"),
        ("epochs: 0", "epochs: expected at least 1, not 0"),
        ("epochs: 100001", "epochs: expected at most 100000, not 100001"),
        ("epochs: [1]", "epochs: expected a whole number"),
        ("key_bits: 2049", "key_bits: expected a multiple of 2, not 2049"),
        ("holdout: 1", "holdout: expected less than 1 or column, not 1"),
        ("l2: .inf", "l2: expected a number, not inf"),
        ("intercept: maybe", "intercept: expected true or false, not maybe"),
        ("batch: some", "batch: expected a whole number or all, not some"),
        ("batch: 0", "batch: expected at least 1 or all, not 0"),
        ("cipher: rsa", "cipher: expected packed or reference, not rsa"),
        ("algorithm: sqn", "algorithm: expected nested keys with values, such as {name: sqn}, not sqn"),
        ("algorithm: 3", "algorithm: expected nested keys with values, not 3"),
        ("algorithm: {memory: 3}", "algorithm: expected a nested key `name`"),
        ("algorithm: {name: adam}", "algorithm: expected `name` to be one of sgd, sqn, lbfgs"),
        ("algorithm: {name: sqn, memory: 0}", "algorithm.memory: expected at least 1, not 0"),
        ("algorithm: {name: sqn, learning_rat: 1}", "algorithm.learning_rat: unknown key; did you mean learning_rate?"),
        ("algorithm: {name: lbfgs, rate: 1}", "algorithm.rate: unknown key; valid keys are memory, name"),
        ("algorithm: {name: sgd, learning_rate: 0}", "algorithm.learning_rate: expected more than 0, not 0"),
    ],
)
def test_a_bad_line_is_named_with_what_was_expected(job_file: Path, line: str, problem: str) -> None:
    job_file.write_text(MINIMAL + line + "\n")
    assert error_of(job_file) == [f"{job_file}: {problem}"]


def test_a_name_must_be_fit_for_a_folder(job_file: Path) -> None:
    job_file.write_text("name: ../up\ndataset: 7\n")
    assert error_of(job_file) == [
        f"{job_file}: name: expected 1 to 64 letters, digits, `.`, `_` or `-`, beginning with a letter or digit, "
        "not ../up",
        f"{job_file}: dataset: expected text (put a number, or a word such as yes, in quotes), not 7",
    ]


def test_every_problem_is_told_at_once(job_file: Path) -> None:
    job_file.write_text("name: first\nepochs: x\nsead: 1\n")
    assert error_of(job_file) == [
        f"{job_file}: dataset: is missing",
        f"{job_file}: epochs: expected a whole number, not x",
        f"{job_file}: sead: unknown key; did you mean seed?",
    ]


def test_options_that_exclude_each_other_are_told_the_way_out(job_file: Path) -> None:
    job_file.write_text(MINIMAL + "batch: 100\n")
    assert error_of(job_file) == [
        f"{job_file}: lbfgs works on the whole training set: remove `batch`, or set it to `all`"
    ]


@pytest.mark.parametrize(
    ("line", "way_out"),
    [
        ("patience: 2", "`patience` counts evaluations: set `evaluate_every`, or remove `patience`"),
        (
            "evaluate_every: 2\nholdout: 0",
            "`evaluate_every` needs hold-out rows: set `holdout`, or remove `evaluate_every`",
        ),
    ],
)
def test_evaluations_need_what_they_are_made_of(line: str, way_out: str, job_file: Path) -> None:
    job_file.write_text(f"{MINIMAL}{line}\n")
    assert error_of(job_file) == [f"{job_file}: {way_out}"]


@pytest.mark.parametrize(
    ("lines", "way_out"),
    [
        ("l1: 0.1\nalgorithm: {name: sgd}", "`l1` and `folds` need the algorithm `lbfgs`: set it, or remove them"),
        (
            "l2: 1\npath: {points: 3}",
            "`path` and `search` compare penalties by cross-validation: set `folds`, or remove them",
        ),
        ("folds: 3\nevaluate_every: 2", "`folds` choose the penalty by rows of their own: remove `evaluate_every`"),
        (
            "folds: 3\nl2: 1\nsearch: [{l2: 2}]",
            "`search` lists all penalties: remove `path`, `l1` and `l2`, or remove `search`",
        ),
        ("folds: 3\npath: {}", "`path` begins at the job's own penalty: set `l1` or `l2`"),
        (
            "folds: 3\none_standard_error: true",
            "`one_standard_error` chooses among penalties: set `path` or `search`, or remove it",
        ),
        (
            "folds: 3\nl2: [0.1, 0.01]",
            "`l2` is one number: to compare several penalties, set `folds`, and list them in `search`, such as"
            " `search: [{l2: 0.1}, {l2: 0.01}]`",
        ),
        ("l1: 1\nstart_from: may", "`l1` and `folds` choose their own start: remove `start_from`, or remove them"),
    ],
)
def test_options_of_a_search_need_one_another(lines: str, way_out: str, job_file: Path) -> None:
    job_file.write_text(f"{MINIMAL}protocol: shares\n{lines}\n")
    assert error_of(job_file) == [f"{job_file}: {way_out}"]


def test_a_path_falls_in_equal_ratios_and_a_search_is_sorted(job_file: Path) -> None:
    job_file.write_text(f"{MINIMAL}protocol: shares\nl1: 2\nl2: 4\nfolds: 3\npath: {{points: 3, smallest: 0.01}}\n")
    penalties = [(each.l1, each.l2) for each in load_job(job_file).penalties]
    assert penalties == [pytest.approx(each) for each in [(2, 4), (0.2, 0.4), (0.02, 0.04)]]
    job_file.write_text(f"{MINIMAL}protocol: shares\nfolds: 3\nsearch: [{{l2: 1}}, {{}}, {{l1: 1, l2: 1}}]\n")
    assert [(each.l1, each.l2) for each in load_job(job_file).penalties] == [(1, 1), (0, 1), (0, 0)]


@pytest.mark.parametrize(
    ("protocol", "name", "value", "why"),
    [
        ("paillier", "max_score", "24", "the loss of `paillier` is quadratic"),
        ("paillier", "inference", "true", "the loss of `paillier` is not a likelihood"),
        ("paillier", "l1", "0.1", "which would show which weights are 0"),
        ("paillier", "folds", "5", "those of two fits differ by sums over a fold"),
        ("paillier", "classes", "3", "each class takes a job of its own"),
        ("shares", "key_bits", "3072", "no ciphertexts"),
        ("shares", "cipher", "reference", "no ciphertexts"),
        ("shares", "slots", "2", "no ciphertexts"),
    ],
)
def test_options_of_the_other_protocol_are_refused_with_the_reason(
    protocol: str, name: str, value: str, why: str, job_file: Path
) -> None:
    job_file.write_text(f"{MINIMAL}protocol: {protocol}\n{name}: {value}\n")
    other = "shares" if protocol == "paillier" else "paillier"
    (error,) = error_of(job_file)
    assert error.startswith(f"{job_file}: `{name}` belongs to `protocol: {other}`, because ")
    assert why in error
    assert error.endswith(": remove it, or set that protocol")


@pytest.mark.parametrize(
    ("lines", "way_out"),
    [
        ("l2: 0.1", "remove `l1`, `l2` and `folds`, or remove `inference`"),
        ("algorithm: {name: sgd}", "set the algorithm to `lbfgs`, or remove `inference`"),
        ("evaluate_every: 2\npatience: 1", "remove `patience` or `inference`"),
        ("tolerance: 1.1e-4", "set `tolerance` to 0.0001 or less, or remove it for the default of 1e-06"),
    ],
)
def test_inference_needs_the_maximum_of_the_likelihood(lines: str, way_out: str, job_file: Path) -> None:
    job_file.write_text(f"name: churn\ndataset: credit\nprotocol: shares\ninference: true\n{lines}\n")
    with pytest.raises(ConfigError, match=way_out):
        load_job(job_file)


def test_a_job_with_standard_errors_stops_nearer_to_the_minimum_unless_it_says_where(job_file: Path) -> None:
    with_errors = MINIMAL + "protocol: shares\ninference: true\n"
    job_file.write_text(with_errors)
    assert load_job(job_file).tolerance == INFERENCE_TOLERANCE < JobConfig(name="job", dataset="data").tolerance
    job_file.write_text(with_errors + "tolerance: 1e-4\n")
    job = load_job(job_file)
    assert job.tolerance == JobConfig.model_validate(job.model_dump()).tolerance == 1e-4


def test_shares_measure_no_curvature(job_file: Path) -> None:
    job_file.write_text(f"{MINIMAL}protocol: shares\nalgorithm: {{name: sqn}}\n")
    assert error_of(job_file) == [f"{job_file}: `shares` measures no curvature: set the algorithm to `lbfgs` or `sgd`"]


@pytest.mark.parametrize("protocol", ["paillier", "shares"])
def test_a_job_with_all_options_of_the_other_protocol_at_their_defaults_is_accepted(protocol: str) -> None:
    """As it travels."""
    job = JobConfig.model_validate({"name": "first", "dataset": "people", "protocol": protocol})
    assert JobConfig.model_validate_json(job.model_dump_json()) == job


def test_long_values_are_cut_in_messages(job_file: Path) -> None:
    job_file.write_text(MINIMAL + f"epochs: {'x' * 5000}\n")
    (line,) = error_of(job_file)
    assert len(line) < len(str(job_file)) + 100


def test_a_missing_file(job_file: Path) -> None:
    assert error_of(job_file) == [f"{job_file}: no such file"]


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    assert error_of(tmp_path) == [f"{tmp_path}: cannot be read: Is a directory"]


@pytest.mark.parametrize("text", ["", "# nothing but a comment\n", "---\n"])
def test_an_empty_file(job_file: Path, text: str) -> None:
    job_file.write_text(text)
    assert error_of(job_file) == [f"{job_file}: the file is empty; see configs/ for examples"]


@pytest.mark.parametrize("text", ["- a\n- b\n", "just text", "42"])
def test_a_file_without_keys(job_file: Path, text: str) -> None:
    job_file.write_text(text)
    assert error_of(job_file) == [f"{job_file}: expected `key: value` lines; see configs/ for examples"]


def test_text_that_is_no_yaml_is_told_the_line(job_file: Path) -> None:
    job_file.write_text("name: first\ndataset: [\n")
    (line,) = error_of(job_file)
    assert line.startswith(f"{job_file}: line 3, column 1: not valid YAML: ")


def test_bytes_that_are_no_text(job_file: Path) -> None:
    job_file.write_bytes(b"\xff\xfe\x00name")
    assert error_of(job_file) == [f"{job_file}: not UTF-8 text; expected a YAML file"]


def test_control_characters_are_no_yaml(job_file: Path) -> None:
    job_file.write_bytes(b"name: \x00\n")
    assert error_of(job_file) == [f"{job_file}: character 7: not valid YAML: special characters are not allowed"]


def test_a_key_given_twice_is_no_silent_choice(job_file: Path) -> None:
    job_file.write_text("name: first\ndataset: a\nname: second\n")
    assert error_of(job_file) == [f"{job_file}: line 3, column 1: not valid YAML: duplicate key `name`"]


def test_yaml_cannot_make_python_objects(job_file: Path) -> None:
    job_file.write_text("name: !!python/object/apply:os.getcwd []\n")
    (line,) = error_of(job_file)
    assert "not valid YAML: could not determine a constructor" in line


@pytest.mark.parametrize("text", ["? {a: b}\n: c\n", "? [a]\n: c\n", "name: 2020-13-45\n", "l2: 0x_\n", "[" * 5000])
def test_what_yaml_cannot_make_a_value_of_is_refused(job_file: Path, text: str) -> None:
    job_file.write_text(text)
    (line,) = error_of(job_file)
    assert "not valid YAML: " in line
