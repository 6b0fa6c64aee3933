"""``trilateral check``: the findings as lines, and whether there is a problem among them."""

from collections.abc import Iterable

import typer

from trilateral.common.checks.finding import Finding, Level

MARKS = {Level.OK: "ok", Level.NOTE: "note", Level.WARNING: "warning", Level.PROBLEM: "PROBLEM"}
COLOURS = {Level.OK: typer.colors.GREEN, Level.WARNING: typer.colors.YELLOW, Level.PROBLEM: typer.colors.RED}
WIDTH = max(map(len, MARKS.values()))


def print_findings(findings: Iterable[Finding]) -> bool:
    """Print each finding as it comes, and a summary; return whether none is a problem."""
    count = dict.fromkeys(Level, 0)
    for finding in findings:
        count[finding.level] += 1
        mark = typer.style(MARKS[finding.level].ljust(WIDTH), fg=COLOURS.get(finding.level))
        typer.echo(f"{mark}  {finding}")
    problems, warnings = count[Level.PROBLEM], count[Level.WARNING]
    typer.echo(f"{problems or 'no'} problem{'s' * (problems != 1)}, {warnings or 'no'} warning{'s' * (warnings != 1)}")
    return not problems
