"""Text with numbers in it, from templates beside the code; jinja2 loads where a text is made."""

import textwrap
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jinja2 import Environment

WIDTH = 120


def page(package: str, folder: str, name: str, given: Mapping[str, object]) -> str:
    """Return a whole template as text.

    Args:
        package: whose folder holds the template, such as "simnet.show".
        folder: of templates, within the package.
        name: of the file.
        given: by the names that the template uses; one that is missing is an error. Beside these there are the filters
            `f`, which writes a number (`{{ 0.5 | f(".0%") }}`), and `wrapped`, which fills paragraphs.
    """
    return _environment(package, folder).get_template(name).render(given)


def paragraphs(package: str, folder: str, name: str, block: str, given: Mapping[str, object]) -> str:
    """Return a block of a template, each paragraph on one line, as `page`; "" if the template has no such block."""
    template = _environment(package, folder).get_template(name)
    if block not in template.blocks:
        return ""
    text = "".join(template.blocks[block](template.new_context(dict(given)))).strip()
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))


def wrapped(text: str, indent: str = "") -> str:
    """Return paragraphs filled to `WIDTH`, later lines indented; neither links nor words with hyphens are broken."""
    return "\n\n".join(
        textwrap.fill(paragraph, WIDTH, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False)
        for paragraph in text.strip().split("\n\n")
    )


@cache
def _environment(package: str, folder: str) -> "Environment":
    from jinja2 import Environment, PackageLoader, StrictUndefined

    # Markdown that this project writes of its own data: nothing to escape.
    made = Environment(
        loader=PackageLoader(package, folder),
        undefined=StrictUndefined,
        autoescape=False,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    made.filters |= {"f": format, "wrapped": wrapped}
    return made
