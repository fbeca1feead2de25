"""Pages written by hand with regions between marks that are generated."""

from collections.abc import Mapping


def filled(page: str, regions: Mapping[str, str]) -> str:
    """Return a page with its regions between <!-- name --> and <!-- end of name --> replaced."""
    for name, text in regions.items():
        begin, end = f"<!-- {name} -->\n", f"\n<!-- end of {name} -->"
        before, _, rest = page.partition(begin)
        _, mark, after = rest.partition(end)
        if not mark:
            raise AssertionError(f"the page has no region {name!r}")
        page = before + begin + text + end + after
    return page


def region(page: str, name: str) -> str:
    """Return the text between the marks of a region."""
    return page.partition(f"<!-- {name} -->\n")[2].partition(f"\n<!-- end of {name} -->")[0]
