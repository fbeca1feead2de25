"""Text with numbers in it, from the templates of `docs/templates/`."""

import re
import textwrap
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from simnet.core import files
from simnet.core.units import format_seconds

if TYPE_CHECKING:
    from jinja2 import Environment, Template

WIDTH = 120
SUFFIX = ".jinja"


def root() -> Path:
    """Return the folder of the templates: inside the installed package, or `docs/templates/` of a checkout."""
    return files.installed_or_checkout("_templates", "docs/templates")


def page(name: str, values: Mapping[str, object]) -> str:
    """Return a whole template, such as "validation.md" or "sets/hkbu_bsp.md", as text.

    It uses values by name, and the filters `f`, which formats a number (`{{ 0.5 | f(".0%") }}`), `seconds`, which picks
    the unit of a time, and `wrapped`, which fills paragraphs.

    Raises:
        jinja2.UndefinedError: the template uses a name that is not given.
    """
    return _template(name).render(values)


def html(name: str, values: Mapping[str, object]) -> str:
    """Return a template, such as "page.html", as HTML; values are escaped, unless they are `markupsafe.Markup`."""
    return environment(root()).overlay(autoescape=True).get_template(name + SUFFIX).render(values)


def paragraphs(name: str, block: str, values: Mapping[str, object]) -> str:
    """Return a block of a template, each paragraph on one line; "" if the template has no such block."""
    template = _template(name)
    if block not in template.blocks:
        return ""
    text = "".join(template.blocks[block](template.new_context(dict(values)))).strip()
    # Templates break lines for those who edit them.
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in re.split(r"\n\s*\n", text))


def wrapped(text: str, indent: str = "") -> str:
    """Return paragraphs filled to `WIDTH`, later lines indented; neither links nor words with hyphens are broken."""
    return "\n\n".join(
        textwrap.fill(paragraph, WIDTH, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False)
        for paragraph in text.strip().split("\n\n")
    )


def _template(name: str) -> "Template":
    return environment(root()).get_template(name + SUFFIX)


@cache
def environment(folder: Path) -> "Environment":
    """Return what reads the templates of a folder, with the filters that `page` names."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined  # only here, so that a command starts fast

    # The output is Markdown or plain text made of this project's own data, so nothing is escaped.
    made = Environment(
        loader=FileSystemLoader(folder),
        undefined=StrictUndefined,
        autoescape=False,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    made.filters |= {"f": format, "seconds": format_seconds, "wrapped": wrapped}
    return made
