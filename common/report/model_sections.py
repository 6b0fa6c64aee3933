"""What the reports of both parties say about their own part of a model: rows, terms, bins, steps and settings."""

from collections.abc import Sequence

from trilateral.common.base.roles import Role
from trilateral.common.config.job import PAILLIER_OPTIONS, SHARES_OPTIONS, JobConfig
from trilateral.common.config.process import GUEST_POLICY, HOST_POLICY, Policy
from trilateral.common.data.model.export import INTERCEPT, ratio_text, weights_of
from trilateral.common.data.model.inference import IN_DOUBT, Inference, ModelFit
from trilateral.common.data.model.model_file import PartyModel
from trilateral.common.data.model.scorecard import candidates
from trilateral.common.data.preprocessing.bins import BinnedColumn
from trilateral.common.data.preprocessing.terms import (
    CategoryColumn,
    EncodedColumn,
    FittedColumn,
    InteractionColumn,
    NumberColumn,
)
from trilateral.common.report import charts
from trilateral.common.report.contents import (
    NO_FIGURE,
    WIDE,
    Block,
    Chart,
    Charts,
    Facts,
    Points,
    Section,
    Table,
    Text,
    number,
    pieces,
    significant,
)
from trilateral.common.report.job_files import JobFiles
from trilateral.common.report.quality import NAMES

HIGH_VIF = 5.0
"""A variance inflation factor from which on a term mostly repeats others of the same party (James et al. 2021, An
Introduction to Statistical Learning, section 3.3.3)."""


def overview(model: PartyModel) -> list[Block]:
    """Return how the model was trained."""
    job = model.job
    return [
        Text(
            f"Trained on {model.data.n_train:,} rows under the protocol {job.protocol}, with the {job.loss_name},"
            f" in {model.rounds:,} rounds."
        ),
        Facts(
            "The model at a glance",
            [
                ("own terms", f"{len(model.weights):,}"),
                ("loss of the whole model on the training rows, penalty included", number(model.loss, 6)),
                ("why the training ended", model.reason),
                ("algorithm", job.algorithm.name),
                ("penalty", f"l1 {job.l1:g}, l2 {job.l2:g}" if job.is_penalised else "none"),
            ],
        ),
    ]


def remarks_of(remarks: Sequence[str], otherwise: str = "") -> list[Block]:
    """Return what a reviewer should look at; without remarks, the text `otherwise`."""
    if remarks:
        return [Text("For a reviewer to look at:"), Points(remarks)]
    return [Text(otherwise)] if otherwise else []


def data_section(model: PartyModel) -> Section:
    """Describe the rows of a model."""
    data = model.data
    rows = [("rows that both parties have", f"{data.n_rows:,}"), ("training rows", f"{data.n_train:,}")]
    rows += [(NAMES.get(name, name), f"{n_rows:,}") for name, n_rows in data.sets.items()]
    if not data.sets:
        rows.append(("hold-out rows", f"{data.n_holdout:,}"))
    n_unused = data.n_rows - data.n_train - max(sum(data.sets.values()), data.n_holdout)
    if n_unused > 0:
        rows.append(("rows without a part in the job", f"{n_unused:,}"))
    if data.n_rarer_label is not None and model.classes is None:
        rows.append(("rows with the rarer label", _range(data.n_rarer_label, data.n_rows)))
    if model.role is Role.GUEST:
        rows.append(("weights of rows", "yes, in the training" if data.weighted else "no, all rows count alike"))
    rows.append(("dataset", model.job.dataset))
    rows.append(("SHA-256 of the table", data.sha256))
    steps = model.steps
    left_out = Table("Columns without a weight", ("column", "reason"), [*model.left_out.items()], n_texts=2)
    return Section(
        "data",
        "Data and preparation",
        pieces(
            Facts("The rows of the model", rows),
            _steps_table(steps.columns),
            left_out if model.left_out else None,
        ),
    )


def _range(counted: str, n_rows: int) -> str:
    """Return a range of rows, as the model file has it, also as shares of all rows."""
    words = [f"{int(word):,}" if word.isdigit() else word for word in counted.split()]
    ends = [int(word) for word in counted.split() if word.isdigit()]
    shares = [f"{min(end / n_rows, 0.5):.1%}" for end in ends] if n_rows else []
    of_all = f" ({'up to ' if len(ends) == 1 else ''}{' to '.join(shares)} of all rows)" if shares else ""
    return f"{' '.join(words)}{of_all}"


def _steps_table(columns: Sequence[FittedColumn]) -> Table:
    return Table(
        "How columns become terms",
        ("column", "steps", "terms"),
        [(each.name, _steps_of(each), f"{len(each.terms):,}") for each in columns],
        n_texts=2,
        note="Fitted on the training rows alone. The model file has the exact numbers.",
    )


def _steps_of(column: FittedColumn) -> str:
    match column:
        case NumberColumn():
            steps = [f"missing: {significant(column.fill, 3)}"]
            limits = [
                f"{name} {significant(limit, 3)}"
                for name, limit in (("from", column.lower), ("to", column.upper))
                if limit is not None
            ]
            if limits:
                steps.append(f"limited {' '.join(limits)}")
            if column.transform is not None:
                steps.append(column.transform)
            if column.spline is not None:
                steps.append(f"{column.spline.kind} spline with {len(column.spline.knots)} knots")
            if column.missing_indicator:
                steps.append("a term for missing values")
            if column.standardise:
                steps.append("standardised")
            return ", ".join(steps)
        case CategoryColumn():
            reference = column.reference or ("missing values" if column.missing == "reference" else "other values")
            return f"a term for each category; reference: {reference}"
        case EncodedColumn():
            return f"categories by {column.encoding}"
        case InteractionColumn():
            return f"product of {column.number.name} and {column.other.name}"
        case BinnedColumn():
            return f"{len(column.bins)} bins, {'weight of evidence' if column.woe else 'a term for each'}"
        case _:
            return column.kind


def terms_section(model: PartyModel, *, prefix: str = "", title: str = "Terms and weights") -> Section:
    """Describe the weights of a party, and how accurate they are.

    Args:
        model: the party's part of a model with one score.
        prefix: begins the names of charts and sections, if the report has several models.
        title: heading of the section.
    """
    inference = model.inference
    weights = sorted(weights_of(model), key=lambda each: -abs(each.standardised))
    of_term = {} if inference is None else inference.terms
    shown = charts.terms_of(model)
    chart = Chart(
        f"{prefix}coefficients",
        "Weights of the most important terms",
        lambda axes: charts.draw_coefficients(axes, shown),
        note="Per standard deviation; per unit for terms of 0 and 1.",
        width=WIDE,
        height=charts.rows_height(len(shown)),
    )
    further = {each.term: each for each in candidates(model)}
    has_accuracy = bool(of_term)
    rows = []
    for each in weights:
        per_sd = each.odds_ratio_per_sd
        row = [
            each.term,
            significant(each.weight),
            ratio_text(each.odds_ratio),
            NO_FIGURE if per_sd is None else ratio_text(per_sd),
        ]
        if has_accuracy:
            found = of_term.get(each.term)
            row += (
                [NO_FIGURE] * 4
                if found is None
                else [
                    significant(found.std_error),
                    number(found.z, 2),
                    p_value(found.p_value),
                    f"{significant(found.lower)} to {significant(found.upper)}",
                ]
            )
        row += [number(further[each.term].vif, 2), number(further[each.term].iv, 3)]
        rows.append(row)
    constant = [INTERCEPT, significant(model.intercept)]
    rows.append([*constant, *[NO_FIGURE] * (len(rows[0]) - 2 if rows else (8 if has_accuracy else 4))])
    if has_accuracy and inference is not None and inference.intercept is not None:
        found = inference.intercept
        rows[-1][4:8] = [
            significant(found.std_error),
            number(found.z, 2),
            p_value(found.p_value),
            f"{significant(found.lower)} to {significant(found.upper)}",
        ]
    accuracy = ("std. error", "z", "p", "95% interval") if has_accuracy else ()
    table = Table(
        f"{title}, the most important first",
        ("term", "weight", "odds ratio", "per std. dev.", *accuracy, "VIF", "IV"),
        rows,
        note="Odds ratio: factor on the odds of the positive label when the term grows by one unit, or by one standard"
        " deviation, and all other terms stay. VIF: variance inflation factor among this party's own terms. IV:"
        " information value of the column.",
    )
    blocks = pieces(
        Text(
            "The score of a row is the sum of both parties' parts. This party knows the weights of its own columns"
            " alone."
        ),
        Charts([chart]) if shown else None,
        table,
        None if inference is None else _column_tests(inference),
        None if inference is None or inference.fit is None else _fit_facts(inference, inference.fit),
    )
    return Section(f"{prefix}terms", title, blocks)


def p_value(value: float) -> str:
    """Return a p-value as statisticians print it."""
    return "< 0.0001" if value < 1e-4 else f"{value:.4f}"


def _column_tests(inference: Inference) -> Table | None:
    if not inference.columns:
        return None
    rows = [
        (column, number(test.statistic, 2), f"{test.df}", p_value(test.p_value))
        for column, test in inference.columns.items()
    ]
    return Table(
        "Wald tests of columns with several terms",
        ("column", "chi-square", "degrees of freedom", "p"),
        rows,
        note="Tests that all weights of the column are 0.",
    )


def _fit_facts(inference: Inference, fit: ModelFit) -> Facts:
    rows = [
        ("deviance", number(fit.deviance, 2)),
        ("null deviance", number(fit.null_deviance, 2)),
        ("AIC", number(fit.aic, 2)),
        ("BIC", number(fit.bic, 2)),
        ("McFadden's R\N{SUPERSCRIPT TWO}", number(fit.mcfadden_r2)),
        ("parameters of both parties", f"{fit.n_parameters:,}"),
    ]
    if fit.likelihood_ratio is not None:
        test = fit.likelihood_ratio
        text = f"chi-square {number(test.statistic, 2)} with {test.df} degrees of freedom, p {p_value(test.p_value)}"
        rows.append(("likelihood-ratio test against an intercept alone", text))
    doubt = IN_DOUBT if inference.may_be_separated else ""
    return Facts(f"Fit of the whole model on the training rows{doubt}", rows)


def weight_remarks(model: PartyModel) -> list[str]:
    """Return what a reviewer should look at among a party's terms."""
    remarks: list[str] = [] if model.inference is None else list(model.inference.warnings)
    binned = {
        term: column for column in model.steps.columns if isinstance(column, BinnedColumn) for term in column.terms
    }
    against = [term for term, weight in model.weights.items() if weight < 0 and term in binned and binned[term].woe]
    if against:
        remarks.append(
            f"Negative weight of {_named(against)}: it contradicts the bins of the column, usually because other"
            " columns say the same."
        )
    if model.inference is not None:
        unclear = [term for term, each in model.inference.terms.items() if each.lower <= 0 <= each.upper]
        if unclear:
            remarks.append(f"The 95% interval of the weight includes 0: {_named(unclear)}.")
    inflated = [each.term for each in candidates(model) if each.vif is not None and each.vif >= HIGH_VIF]
    if inflated:
        remarks.append(f"Variance inflation factor of {HIGH_VIF:g} or more: {_named(inflated)}.")
    return remarks


def _named(names: Sequence[str], most: int = 8) -> str:
    listed = ", ".join(names[:most])
    return f"{listed} and {len(names) - most} more" if len(names) > most else listed


def settings_section(files: JobFiles) -> Section:
    """Describe the job, the policy and the versions."""
    facts = [("job", files.job), ("run", files.run_id or NO_FIGURE), ("role", files.role.value)]
    if files.ended:
        facts.append(("ended", files.ended))
    if files.outcome:
        facts.append(("state", files.outcome))
    if files.model is not None:
        facts += [(f"version of {name}", each) for name, each in files.model.versions.items()]
    if files.sha256:
        name = "model.json" if files.model is not None else "bins.json"
        facts.append((f"SHA-256 of {name}", files.sha256))
    if files.audit:
        numbers = [each["number"] for each in files.audit if "number" in each]
        if numbers:
            facts.append(("lines of the audit log", f"{min(numbers):,} to {max(numbers):,}"))
    blocks: list[Block] = [Facts("Identity", facts)]
    if files.settings is not None:
        blocks.append(_job_table(files.settings))
    if files.config is not None and files.role is not Role.COORDINATOR:
        blocks.append(_policy_table(files.config.policy, files.role))
        if files.config.plaintext:
            blocks.append(Points(["This process runs without TLS, as for a trial on one machine."]))
    return Section("settings", "Settings and versions", blocks)


def _job_table(job: JobConfig) -> Table:
    defaults = JobConfig(name=job.name, dataset=job.dataset).model_dump(mode="json")
    rows = []
    foreign = PAILLIER_OPTIONS if job.protocol == "shares" else SHARES_OPTIONS
    for name, value in job.model_dump(mode="json", exclude=set(foreign)).items():
        mark = NO_FIGURE if value == defaults[name] else _written(defaults[name])
        rows.append((name, _written(value), mark if name not in {"name", "dataset"} else NO_FIGURE))
    return Table(
        "The job",
        ("option", "value", "default, if another"),
        rows,
        n_texts=3,
    )


def _policy_table(policy: Policy, role: Role) -> Table:
    defaults = Policy().model_dump(mode="json")
    foreign = GUEST_POLICY if role is Role.HOST else HOST_POLICY
    rows = [
        (name, _written(value), NO_FIGURE if value == defaults[name] else _written(defaults[name]))
        for name, value in policy.model_dump(mode="json").items()
        if name not in foreign
    ]
    return Table(
        "The policy of this party, when this report was made",
        ("setting", "value", "default, if another"),
        rows,
        n_texts=3,
    )


def _written(value: object) -> str:
    """Return a value of a setting as YAML writes it, on one line."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case float() if value.is_integer() and abs(value) < 1e15:
            return f"{value:.0f}"
        case dict():
            return "{" + ", ".join(f"{name}: {_written(each)}" for name, each in value.items()) + "}"
        case list():
            return "[" + ", ".join(map(_written, value)) + "]"
        case _:
            return str(value)
