"""Studies, by what they do; `python -m evidence.studies` runs them and writes what pages say of them."""

TRAININGS = ("margins", "systems", "local_steps")
LAB = {
    "recorded": "in_lab.recorded",  # steps that no strategy describes; a quarter of an hour
    "alternatives": "in_lab.alternatives",  # sharding, local steps and 8 bits; a quarter of an hour
    "uneven": "in_lab.uneven",  # nodes that are not alike; three quarters of an hour, needs iperf3
    "latency": "latency",  # all-reduces over links with a latency; half an hour
}
OTHERS = ("chaos", "few_samples", "long_run", "memory", "what_to_use", "uneven_questions")
STUDIES = {name: name for name in (*TRAININGS, *OTHERS)} | LAB
"""By name, the module."""
