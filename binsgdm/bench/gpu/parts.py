"""The parts of `simnet measure gpu` as data: what each measures, its share of the time, and the module that does it."""

from dataclasses import dataclass

from binsgdm.errors import BinsgdmError

BUDGET_S = 375


class NotMeasurableError(BinsgdmError):
    """A part cannot be measured here; its message becomes the reason why it was skipped."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """One part, which writes NAME.json.

    Attributes:
        name: of the part and its file.
        about: what it does, for people.
        seconds: its share of `BUDGET_S`, its start (imports, CUDA, compiling kernels) included.
        module: has `measure(bench, *, quick, seconds)`, where `seconds` are left for it and `quick` asks for the
            smallest sizes. It writes series, notes and checks to `bench.record`, and is imported by the part's own
            process alone. It may raise `NotMeasurableError`.
        every_card: runs one rank on each card, joined in a process group (of one rank where there is one card);
            otherwise one process alone on the first card.
    """

    name: str
    about: str
    seconds: int
    module: str
    every_card: bool = False


HERE = "binsgdm.bench.gpu"
PARTS: tuple[Part, ...] = (
    Part(
        name="kernels",
        about="time every kernel and every compressing system over sizes, with copies in the same run",
        seconds=152,
        module=f"{HERE}.kernels",
    ),
    Part(
        name="step",
        about="time the steps of BinSGDM, 1-bit Adam and fused AdamW, and take their memory",
        seconds=23,
        module=f"{HERE}.step",
    ),
    Part(
        name="models",
        about="time forward, backward and gradients of the shipped models in every precision",
        seconds=145,
        module=f"{HERE}.models",
    ),
    Part(
        name="interference",
        about="time backward while collectives run, or copies that stand for them",
        seconds=20,
        module=f"{HERE}.interference",
        every_card=True,
    ),
    Part(
        name="training",
        about="time steps of training over all cards under several strategies",
        seconds=25,
        module=f"{HERE}.training",
        every_card=True,
    ),
    Part(
        name="links",
        about="time collectives between cards",
        seconds=10,
        module=f"{HERE}.links",
        every_card=True,
    ),
)
