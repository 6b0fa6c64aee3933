"""Small pieces of HTML for notebooks."""

from collections.abc import Mapping
from html import escape


def facts_html(caption: str, facts: Mapping[str, object]) -> str:
    """Return a table of two columns, with all text escaped.

    Args:
        caption: what the table is about.
        facts: what each fact is called, and the fact. A fact that is None is left out.
    """
    rows = "".join(
        f'<tr><th scope="row" style="text-align: left">{escape(name)}</th>'
        f'<td style="text-align: left">{escape(str(fact))}</td></tr>'
        for name, fact in facts.items()
        if fact is not None
    )
    caption = f'<caption style="text-align: left">{escape(caption)}</caption>'
    return f"<table>{caption}<tbody>{rows}</tbody></table>"
