"""Studies, by what they do; `python -m evidence.studies` runs them and writes what pages say of them."""

TRAININGS = ("margins", "systems", "local_steps")
IN_LAB = ("recorded", "alternatives", "uneven", "latency")
"""Run once in the lab: steps that no strategy describes; sharding, local steps and 8 bits; nodes that are not alike;
links with a latency. Results and predictions are kept."""
OTHERS = ("chaos", "few_samples", "long_run", "memory", "what_to_use", "uneven_questions")
STUDIES = {name: name for name in (*TRAININGS, *OTHERS)} | {name: f"in_lab.{name}" for name in IN_LAB}
"""By name, the module."""
