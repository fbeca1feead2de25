"""Reads docstrings of this project for mkdocstrings, which knows `Examples:` and no `Example:`."""

from typing import Any

import griffe


class ExampleSections(griffe.Extension):
    """Names the section of an example as griffe does."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rename the section of an object's docstring."""
        if obj.docstring is not None:
            obj.docstring.value = obj.docstring.value.replace("\nExample:\n", "\nExamples:\n")
