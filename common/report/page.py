"""A report as one HTML file that needs nothing else: no other file, no network, and its scripts are optional."""

import base64
import hashlib
import json
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from trilateral.common.base.errors import ConfigError
from trilateral.common.base.roles import Role
from trilateral.common.config.process import ProcessConfig
from trilateral.common.data.model.distributions import Shift
from trilateral.common.data.preprocessing.few_rows import MIN_ROWS
from trilateral.common.report.contents import WIDE
from trilateral.common.report.job_files import JobFiles, read_job

if TYPE_CHECKING:
    from trilateral.common.report.contents import Chart, Report, Thresholds
    from trilateral.common.report.later_rows import LaterRows

_TEMPLATES = Path(__file__).parent / "templates"
_FIELDS = ("axis", "probability", "score", "true_positive", "false_positive", "n_positive", "n_negative")


class _Drawn(NamedTuple):
    svg: str
    sentence: str


def report_html(config: ProcessConfig, job: str, later: "LaterRows | None" = None) -> str:
    """Return the page about a job in the state folder of a process, which may be running.

    Args:
        config: the settings of the process.
        job: name of the job.
        later: rows after the training to look at.

    Raises:
        ConfigError: jinja2 or matplotlib is missing, or the command asks for what this role has not.
        DataError: the process knows no such job, or a file cannot be read.
    """
    return html_of(read_job(config, job), later)


def html_of(files: JobFiles, later: "LaterRows | None" = None) -> str:
    """Return the page about the files of a job; see `report_html`."""
    try:
        import jinja2  # noqa: F401
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            f"a report needs {error.name}, which is not installed: run `pip install 'trilateral[report]'`"
        ) from None
    return render_page(_report(files, later), datetime.now(UTC))


def _report(files: JobFiles, later: "LaterRows | None") -> "Report":
    # These modules import matplotlib.
    from trilateral.common.report.bins import bins_report
    from trilateral.common.report.guest import guest_report
    from trilateral.common.report.host import host_report
    from trilateral.common.report.job import job_report
    from trilateral.common.report.later_rows import Later, look_at_later

    if files.model is None:
        if later is not None:
            raise ConfigError("only a party's part of a model can be compared with later rows: leave out these options")
        return job_report(files) if files.bins is None else bins_report(files, files.bins)
    looked = Later(Shift(0, {})) if later is None else look_at_later(files.model, later)
    of_role = guest_report if files.role is Role.GUEST else host_report
    return of_role(files, files.model, looked)


def render_page(report: "Report", made: datetime) -> str:
    """Return a report as HTML.

    Args:
        report: its contents.
        made: when it was made.
    """
    import jinja2
    from markupsafe import Markup

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=True,
        trim_blocks=False,
        undefined=jinja2.StrictUndefined,
    )
    style, script = _style(), (_TEMPLATES / "report.js").read_text()
    return environment.get_template("report.html").render(
        report=report,
        draw=_draw,
        json=_json,
        policy=_policy(style, script),
        style=Markup(style),  # noqa: S704 (a file of this package)
        script=Markup(script),  # noqa: S704
        version=version("trilateral"),
        made=made.astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        min_rows=MIN_ROWS,
        wide=WIDE,
    )


def _draw(chart: "Chart") -> _Drawn:
    from markupsafe import Markup

    from trilateral.common.report import svg

    sentences: list[str] = []

    def draw(axes: Any) -> str:
        sentences.append(chart.draw(axes))
        return sentences[-1]

    drawn = svg.render(draw, name=chart.name, title=chart.title, width=chart.width, height=chart.height)
    return _Drawn(Markup(drawn), sentences[-1])  # noqa: S704 (escaped by the XML library)


def _json(block: "Thresholds") -> str:
    return json.dumps({name: getattr(block, name) for name in _FIELDS}, separators=(",", ":"))


def _style() -> str:
    from trilateral.common.report import svg

    def variables(colours: dict[str, str]) -> str:
        return f":root{{{';'.join(f'{name}:{colour}' for name, colour in colours.items())}}}"

    light, dark = variables(svg.LIGHT), variables(svg.DARK)
    on_screen = f"@media screen and (prefers-color-scheme: dark){{{dark}}}"
    return f"{light}{on_screen}\n{(_TEMPLATES / 'report.css').read_text()}"


def _policy(style: str, script: str) -> str:
    """Return a content security policy that permits the page's own style and script, and nothing else."""
    return (
        f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; img-src data:; base-uri 'none';"
        " form-action 'none'"
    )


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
