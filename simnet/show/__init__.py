"""Results for people and other programs: tables, JSON and CSV, figures, timelines; never the simulator."""
