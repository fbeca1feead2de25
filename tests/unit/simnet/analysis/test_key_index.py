"""A table of the places of many keys answers as a dict does."""

from hypothesis import given
from hypothesis import strategies as st

from simnet.analysis.key_index import KeyPlaces


@given(st.lists(st.tuples(st.text(max_size=3), st.integers(0, 2**62)), max_size=200))
def test_places_are_those_of_a_dict(pairs: list[tuple[str, int]]) -> None:
    places, expected = KeyPlaces(num_slots=2), {}
    for key, place in pairs:
        places[key] = expected[key] = place
    assert len(places) == len(expected)
    assert {key: places.get(key) for key in expected} == expected
    assert all(key in places for key in expected)
    assert places.get("none of them") is None
    assert "none of them" not in places


def test_a_key_that_is_no_text_of_files_has_a_place() -> None:
    places = KeyPlaces()
    places["\ud800"] = 3
    assert (places.get("\ud800"), places.get("\ud801")) == (3, None)
