"""Notebooks as pages of the site, with what their cells have shown."""

from pathlib import Path


def page(path: Path) -> tuple[str, dict[str, bytes]]:
    """Return a notebook as Markdown, and its figures by the names that the page has for them."""
    from nbconvert import MarkdownExporter
    from traitlets.config import Config

    template = f"{path.stem}_{{cell_index}}_{{index}}{{extension}}"
    given = Config({"ExtractOutputPreprocessor": {"output_filename_template": template}})
    text, found = MarkdownExporter(config=given).from_filename(str(path))
    return text.replace(".ipynb)", ".md)"), found["outputs"]
