"""The order of dependence of both packages, as ARCHITECTURE.md tells it: who may import whom."""

ORDER = (
    ("core",),
    ("cluster",),
    ("collectives", "workload"),
    ("strategies",),
    ("engine",),
    ("analysis", "traces"),
    ("calibration",),
    ("validation",),
    ("report",),
    ("api",),
    ("cli",),
    ("__init__", "__main__"),
)
"""The rooms of simnet: each line may import itself and those above it."""
BINSGDM_ORDER = (
    ("errors", "files", "options"),
    ("kernels",),
    ("comm",),
    ("compressors",),
    ("optimizers",),
    ("parallel", "recording"),
    ("bench",),
    ("__init__", "__main__"),
)
"""The same of binsgdm; the last line holds what loads lazily."""
