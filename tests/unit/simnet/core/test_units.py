"""Quantities as text."""

import pytest

from simnet.core.units import Bandwidth, Duration, Quantity, Size, format_bytes, format_seconds


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (Bandwidth, "100 Gb/s", 12.5e9),
        (Bandwidth, "100Gbps", 12.5e9),
        (Bandwidth, "100 Gbit/s", 12.5e9),
        (Bandwidth, "100 GB/s", 100e9),
        (Bandwidth, "100 GBps", 100e9),
        (Bandwidth, "1 GiB/s", 2**30),
        (Bandwidth, "1.5e3 Mbit/s", 187.5e6),
        (Bandwidth, "1_000 Mbit/s", 125e6),
        (Bandwidth, ".5 Gbit/s", 62.5e6),
        (Size, "25 MiB", 25 * 2**20),
        (Size, "25MB", 25e6),
        (Size, "64 KiB", 65536),
        (Size, "8 bit", 1),
        (Size, "1 kB", 1000),
        (Size, "0 B", 0),
        *((Duration, text, 5e-6) for text in ("5 us", "5µs", "5 μs")),
        (Duration, "10 ns", 1e-8),
        (Duration, "2 min", 120),
        (Duration, "1 h", 3600),
    ],
)
def test_a_small_b_is_bits_a_capital_b_bytes_ki_binary_and_k_decimal(
    kind: type[Quantity], text: str, value: float
) -> None:
    quantity = kind.parse(text)
    assert quantity == pytest.approx(value, rel=1e-15)
    assert kind.parse(quantity) is quantity


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        (Bandwidth, "25", "'25': write a number and a unit, such as '25 Gbit/s'"),
        (Bandwidth, 25, "25: write a number and a unit in quotes, such as '25 Gbit/s'"),
        (Bandwidth, None, "None: write a number and a unit in quotes"),
        (Bandwidth, "25 G", "did you mean 'Gbit/s' (bits) or 'GB/s' (bytes)?"),
        (Bandwidth, "25 gbit/s", "did you mean 'Gbit/s'?"),
        (Bandwidth, "25 MiB", "'MiB' is not a unit of bandwidth"),
        (Bandwidth, "-1 Gbit/s", "must be finite and not negative"),
        (Bandwidth, "1e999 Gbit/s", "must be finite and not negative"),
        (Size, "5 us", "'us' is not a unit of size"),
        (Size, "5 Mb", "did you mean 'MB' (bytes) or 'Mbit' (bits)?"),
        (Size, "", "'': write a number and a unit"),
        (Size, "1__0 B", "'1__0 B': '__0 B' is not a unit of size"),
        (Size, "nan B", "write a number and a unit"),
        (Size, "9" * 5000 + " B", "999...999"),
        (Bandwidth, "9" * 300_000, "write a number and a unit, such as '25 Gbit/s'"),
        (Bandwidth, ["9" * 300_000], "write a number and a unit in quotes"),
        (Duration, "5 sec", "'sec' is not a unit of time; write for example '5 us'"),
    ],
)
def test_a_wrong_quantity_is_refused_with_the_repair(kind: type[Quantity], value: object, message: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the message is checked below
        kind.parse(value)
    assert message in str(caught.value)
    assert len(str(caught.value)) < 250


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.69363, "693.6 ms"), (7200, "2 h"), (3e-9, "3 ns"), (0, "0 s"), (5e-6, "5 us"), (1.5, "1.5 s"),
     (0.99999, "1 s"), (0.9994, "999.4 ms"), (9.99996e-7, "1 us"), (0.0, "0 s")],
)  # fmt: skip
def test_times_for_people_have_four_digits_and_the_unit_that_fits_them(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


def test_sizes_for_people_are_decimal_and_the_shortest_text_is_the_one_that_a_user_wrote() -> None:
    sizes = {440.4e6: "440.4 MB", 12: "12 B", 5e12: "5 TB", 1500: "1.5 kB"}
    assert {size: format_bytes(size) for size in sizes} == sizes
    for text in ("25 Gbit/s", "300 GB/s", "0 B/s"):
        assert Bandwidth.parse(text).text() == text
