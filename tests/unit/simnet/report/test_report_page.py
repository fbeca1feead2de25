"""A report in Chromium: drawn, without an error, on a desktop, a phone and paper; whatever its titles hold."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import simnet
from simnet.core import templates
from simnet.report import contents
from simnet.report.report_page import Origin, report_page
from simnet.report.table import Table
from tests.helpers.browser import Watched, chromium, num_colours
from tests.helpers.needs import needs

needs("plotly")
BERT = "bert_base_10gbit"
DRAWS = {"run.draws": 20}
MOST_BYTES = 6_000_000
HOSTILE = "</script><script>document.title='taken'</script><img src=x onerror=alert(1)> \"'&\u2028 表 \x1b[31m"
ORIGIN = Origin(commands=("simnet report x.toml -o r.html", f"echo {HOSTILE}"), inputs=((HOSTILE, "0" * 64),))


NAMED = """() => Array.from(document.querySelectorAll('a[href], button, summary, [tabindex="0"]'))
    .filter(one => one.checkVisibility()).map((one, index) => one.dataset.test = String(index))"""
"""Number what the keyboard shall reach, in the order of the page."""


def page_of(scenario: simnet.Scenario, **more: Any) -> str:
    return report_page(contents.of_scenario(scenario, lambda _: None, **more), ORIGIN)


@contextmanager
def little_around() -> Iterator[None]:
    """Simulate little around the scenario."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(contents, "RATES", contents.RATES[2:4])
        patch.setattr(contents, "MOST_NODES", 1)
        yield


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(page_of(simnet.load(BERT, DRAWS), systems=["BinSGDM", "int8"]), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("hostile") / "report.html"
    changes = {"name": HOSTILE, "question": HOSTILE * 1_000, "workload.title": HOSTILE, "cluster.source": HOSTILE}
    scenario = simnet.load(BERT, DRAWS).replace(**changes)
    with little_around():
        path.write_text(page_of(scenario, systems=None), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as found:
        yield found


def test_one_file_below_six_megabytes_that_loads_nothing(report: Path, hostile: Path) -> None:
    for path in (report, hostile):
        text = path.read_text(encoding="utf-8")
        assert len(text.encode()) < MOST_BYTES
        own = text[: text.index("<script>")] + text[text.rindex("<script>") :]
        assert not re.search(r"""(src|href)\s*=\s*["']?(https?:)?//""", own)
    assert hostile.stat().st_size < report.stat().st_size + 10 * len(HOSTILE), "a long question is cut"


def luminance(colour: str) -> float:
    """Return the relative luminance of a colour, as the Web Content Accessibility Guidelines define it."""
    values = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in values]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize(
    ("text", "ground"),
    [
        *((text, ground) for text in ("ink", "quiet", "accent") for ground in ("paper", "raised")),
        *((text, f"{judged}-paper") for judged in ("pays", "not", "maybe") for text in ("ink", judged)),
    ],
)
def test_text_has_contrast(theme: int, text: str, ground: str) -> None:
    style = (templates.root() / "report.html.jinja").read_text(encoding="utf-8")
    colours = {key: re.findall(rf"--{key}: (#[0-9a-f]{{6}})", style)[theme] for key in (text, ground)}
    low, high = sorted(map(luminance, colours.values()))
    assert (high + 0.05) / (low + 0.05) >= 4.5


def test_a_table_of_thousands_of_rows_is_cut_and_says_so() -> None:
    rows = Table(("a", "b"), [(str(number), "x" * 10_000) for number in range(3000)])
    section = contents.Section(key="one", title="One", tables=(("Rows", rows),))
    whole = contents.Contents(title="t", question="", verdict="v", judgement="", sections=(section,))
    text = report_page(whole, ORIGIN)
    assert "and 2500 more" in text
    assert len(text.encode()) < MOST_BYTES


@pytest.mark.slow
def test_the_same_question_gives_the_same_bytes() -> None:
    scenario = simnet.load(BERT, DRAWS)
    with little_around():
        assert page_of(scenario, systems=None) == page_of(scenario, systems=None)


@pytest.mark.slow
@pytest.mark.parametrize(("width", "scheme"), [(390, "light"), (1200, "dark")])
def test_every_figure_is_drawn_without_an_error(browser: Any, report: Path, width: int, scheme: str) -> None:
    watched = Watched(browser, width=width, color_scheme=scheme)
    page = watched.open(report)
    plots = page.locator(".plot").all()
    assert len(plots) >= 6
    for plot in plots:
        assert num_colours(plot.screenshot()) > 20
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate("document.documentElement.dataset.theme") == scheme
    assert watched.errors == []
    assert [url for url in watched.requests if not url.startswith(("file:", "blob:", "data:"))] == []


@pytest.mark.slow
def test_links_keyboard_tables_theme_and_paper(browser: Any, report: Path) -> None:
    watched = Watched(browser, color_scheme="light", permissions=["clipboard-read", "clipboard-write"])
    page = watched.open(report)
    links = "links => links.map(link => link.getAttribute('href').slice(1))"
    targets = page.eval_on_selector_all("a[href^='#']", links)
    assert len(targets) >= 6
    assert page.evaluate("ids => ids.filter(id => !document.getElementById(id))", targets) == []

    wanted = page.evaluate(NAMED)
    assert len(wanted) > 15
    reached = []
    for _ in wanted:
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.dataset.test"))
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"
    assert reached == wanted
    assert page.evaluate("document.querySelector('[data-test=\"0\"]').className") == "skip"

    drawn = page.evaluate("document.querySelector('[data-figure$=heat-map]').data[1].text")
    table = page.locator("figure:has([data-figure$=heat-map]) table").text_content()
    assert len(drawn) > 20
    assert all(value in table for value in drawn)

    page.get_by_text("The numbers: Where it is faster").press("Enter")
    page.get_by_role("button", name="Copy for a spreadsheet").press("Enter")
    page.get_by_text("Copied.").wait_for()
    copied = page.evaluate("navigator.clipboard.readText()").splitlines()
    assert copied[0].split("\t")[:2] == ["NIC bandwidth [Gbit/s]", "1 node"]
    assert len(copied) == 1 + page.locator("figure:has([data-figure$=heat-map]) tbody tr").count()

    colour = "getComputedStyle(document.querySelector('.plot .xtick text')).fill"
    before = page.evaluate(colour)
    page.get_by_role("button", name="Dark").press("Enter")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    assert page.evaluate(colour) != before

    printed = page.pdf(format="A4")
    assert 3 <= len(re.findall(rb"/Type\s*/Page\b", printed)) <= 20
    assert watched.errors == []


@pytest.mark.slow
def test_without_scripts_the_answer_and_the_tables_are_there(browser: Any, report: Path) -> None:
    page = Watched(browser, java_script_enabled=False).page
    page.goto(report.as_uri())
    assert page.locator("#answer").inner_text().startswith("PAYS")
    page.get_by_text("The numbers: Where it is faster").click()
    assert page.get_by_role("cell", name="400 Gbit/s").first.is_visible()
    assert page.locator("button:visible").count() == 0


@pytest.mark.slow
def test_hostile_titles_are_text(browser: Any, hostile: Path) -> None:
    watched = Watched(browser)
    page = watched.open(hostile)
    assert "taken" not in page.title().split("<")[0]
    assert page.locator("h1").text_content().startswith("</script><script>")
    assert page.evaluate("document.querySelectorAll('img').length") == 0
    assert watched.errors == []
    for plot in page.locator(".plot").all():
        assert num_colours(plot.screenshot()) > 20
