"""The public name of the settings of a job, with a docstring that explains each option to `help`."""

import ast
import inspect
from contextlib import suppress
from itertools import pairwise
from textwrap import dedent, fill

from trilateral.common.config.job import JobConfig as Job

__all__ = ["Job"]


def _document(job: type[Job]) -> None:
    """Put the docstrings of the fields into that of the class, and leave the types out of the signature."""
    (definition,) = ast.parse(dedent(inspect.getsource(job))).body
    lines = []
    for field, text in pairwise(definition.body if isinstance(definition, ast.ClassDef) else []):
        match field, text:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(docstring))):
                line = f"{name}: {' '.join(docstring.split())}"
                lines.append(fill(line, 110, initial_indent=" " * 4, subsequent_indent=" " * 8))
    job.__doc__ = "\n".join([inspect.cleandoc(job.__doc__ or ""), "", "Args:", *lines, ""])
    empty, keyword = inspect.Parameter.empty, inspect.Parameter.KEYWORD_ONLY
    job.__signature__ = inspect.Signature(
        [
            inspect.Parameter(name, keyword, default=empty if field.is_required() else field.default)
            for name, field in job.model_fields.items()
        ]
    )


with suppress(OSError):  # an installation without source files
    _document(Job)
