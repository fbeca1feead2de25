"""What all figures share: one look, and files that are the same for the same data."""

from pathlib import Path

import pytest
from matplotlib.figure import Figure

from simnet.core.errors import SimnetError
from simnet.report import figure
from simnet.report.figure import Format


def drawn(left: float = 0.1) -> Figure:
    """Return a figure with a clip path, which matplotlib names by its place."""
    made = Figure(figsize=(2, 2))
    made.add_axes((left, 0.1, 0.8, 0.8)).plot([1, 2], [1, 2])
    return made


@pytest.mark.slow
@pytest.mark.parametrize(("form", "told"), [("png", b"Software"), ("pdf", b"CreationDate"), ("svg", b"dc:date")])
def test_the_same_data_give_the_same_bytes_without_a_date(form: Format, told: bytes) -> None:
    with figure.styled():
        # Layouts found anew differ by as much.
        images = {figure.image(drawn(left), form) for left in (0.1, 0.1 + 1e-15)}
    assert len(images) == 1
    assert told not in images.pop()


def test_clip_paths_of_an_svg_are_still_found() -> None:
    with figure.styled():
        svg = figure.image(drawn(), "svg").decode()
    assert svg.count('clip-path="url(#clip1)"') == svg.count('<clipPath id="clip1"') == 1


def test_an_ending_that_is_no_figure_is_refused_before_anything_is_drawn() -> None:
    assert figure.format_of(Path("a.PNG")) == "png"
    with pytest.raises(SimnetError, match=r"^x.jpg: '.jpg': a figure is a .png, .pdf or .svg file; name one"):
        figure.format_of(Path("x.jpg"))


def test_text_of_users_is_clipped_and_cannot_break_lines() -> None:
    assert figure.label("a\nb\x1b") == "a b?"
    assert figure.label("x" * 100) == "x" * 33 + "..."
