"""What classes say below their fields, for the tables of the documentation."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from typing import Any


def field_docstrings(kind: type[Any]) -> dict[str, str]:
    """Return the docstring below each field of a class, in one line; fields without one are left out."""
    (body,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(body, ast.ClassDef)
    found: dict[str, str] = {}
    for field, text in zip(body.body, body.body[1:], strict=False):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(text, ast.Expr)
            and isinstance(text.value, ast.Constant)
        ):
            found[field.target.id] = one_line(str(text.value.value))
    return found


def one_line(text: str) -> str:
    """Return a docstring's text in one line, code between single backticks as Markdown has it."""
    return re.sub(r"``(.*?)``", r"`\1`", " ".join(text.split()))
