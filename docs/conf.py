"""Sphinx builds the documentation site from this folder and from the docstrings: ``make docs``.

Nothing is fetched, neither while the site is built nor when somebody reads it.
"""

import re
import sys
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import _generate  # noqa: E402

project = "trilateral"
author = "the trilateral project"
version = release = version_of("trilateral")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build", "**/*.ipynb"]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}

html_theme = "furo"
html_title = f"trilateral {release}"
html_static_path = ["_style"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False

myst_heading_anchors = 4
myst_enable_extensions = ["deflist"]
# Fences without a language are commands, their output and formulas.
highlight_language = "none"

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
# Attributes of a class are part of its description, and not objects of their own beside its fields.
napoleon_use_ivar = True
# Docstrings put code in single backticks, as the documents do.
default_role = "code"

nitpicky = True
# A public class is described twice, under its public name and with its module: either will do for a link.
suppress_warnings = ["ref.python"]
# A name must be found, but for those of other libraries, of generated code, of type variables and of private types.
nitpick_ignore_regex = [
    (r"py:.*", r"(?!trilateral\.).*"),
    (r"py:.*", r"trilateral\.common\.pb\..*"),
    # Sphinx takes a function that validates an annotated type for a class.
    (r"py:class", r"trilateral\..*\.check_\w+"),
    (r"py:.*", r"trilateral\..*\.(_\w+|E|T|\w+T|\w*T_co|Request|Response|Annotated\[.*)"),
]


# --- docstrings are read as text with code and formulas, not as reStructuredText


SECTION = re.compile(r"(Args|Returns|Raises|Yields|Attributes|Examples?|Notes?|References|Warnings?|See Also):")
CODE = re.compile(r"(``.*?``|`[^`\n]+`)")
SPECIAL = re.compile(r"(?<!\\)[*|]|_(?=\W|$)")


def plain_docstring(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Keep ``|S|``, ``w*`` and ``x_`` from being read as markup, and show indented formulas as they are."""
    del app, obj, options
    read: list[str] = []
    in_section = literal = False
    for i, line in enumerate(lines):
        indented = line.startswith("    ")
        if not line.strip():
            read.append(line)
            continue
        if SECTION.fullmatch(line.strip()) and not indented:
            in_section, literal = True, False
        elif not indented:
            in_section = literal = False
        elif not in_section and not literal and i and not lines[i - 1].strip():
            read += ["::", ""]
            literal = True
        if literal:
            read.append(line)
        else:
            parts = CODE.split(line)
            read.append("".join(part if i % 2 else SPECIAL.sub(r"\\\g<0>", part) for i, part in enumerate(parts)))
    lines[:] = read
    if what in {"attribute", "data", "property"}:
        attributes[name] = read


attributes: dict[str, list[str]] = {}


def whole_attribute(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Undo what napoleon does to an attribute's docstring: it takes what stands before a colon for a type."""
    del app, what, obj, options
    lines[:] = attributes.pop(name, lines)


def links_of_the_site(app: Sphinx, name: str, content: list[str]) -> None:
    """Turn links to files that are not part of the site into plain names."""
    path = Path(app.srcdir) / f"{name}.md"
    if path.exists() and not _generate.is_generated(path):
        content[0] = _generate.for_site(content[0], path, path)


def setup(app: Sphinx) -> None:
    """Write the generated pages, and register the hooks."""
    _generate.write_pages()
    # Before napoleon, which has the default priority of 500.
    app.connect("autodoc-process-docstring", plain_docstring, priority=400)
    app.connect("autodoc-process-docstring", whole_attribute, priority=600)
    app.connect("source-read", links_of_the_site)
