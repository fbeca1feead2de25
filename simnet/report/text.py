"""Write the numbers of a result for people."""


def throughput_text(samples_per_s: float) -> str:
    """Return a throughput: "13,760 samples/s"."""
    number = f"{samples_per_s:,.0f}" if samples_per_s >= 1000 else f"{samples_per_s:.4g}"
    return f"{number} samples/s"


def bandwidth_text(gbit_per_s: float) -> str:
    """Return a NIC's rate: "25 Gbit/s"."""
    return f"{gbit_per_s:g} Gbit/s"


def nodes_text(*counts: int) -> str:
    """Return counts of nodes: "1 node", or "1, 2 and 4 nodes"."""
    *others, last = (str(count) for count in counts)
    joined = f"{', '.join(others)} and {last}" if others else last
    return f"{joined} {'node' if counts == (1,) else 'nodes'}"


def value_text(value: object) -> str:
    """Return a swept value: "8", "all_reduce, algorithm hierarchical", "node 1, nic_slowdown 2.0", "none"."""
    if isinstance(value, dict):
        own = [str(value["kind"])] if "kind" in value else []
        return ", ".join([*own, *(f"{key} {value_text(v)}" for key, v in value.items() if key != "kind")])
    if isinstance(value, list):
        return "; ".join(value_text(item) for item in value) or "none"
    return str(value)


def speedup_text(speedup: float | None) -> str:
    """Return a speedup to three digits: "4.16x", "13.8x", or "-" where there is none."""
    if speedup is None:
        return "-"
    digits = 2 if speedup < 10 else 1 if speedup < 100 else 0
    return f"{speedup:.{digits}f}x"
