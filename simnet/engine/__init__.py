"""A Scenario in, a RunResult out: by a plain loop, by a recurrence over ranks, or on the clock of SimPy."""
