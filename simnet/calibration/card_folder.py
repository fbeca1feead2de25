"""Read what `make gpu` has left in a folder: card.json, a measurement file for each part, and one of the tests."""

import io
import re
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec

from simnet.calibration import measurement_file
from simnet.calibration.measurement_file import MeasurementFile, Series
from simnet.core.errors import SimnetError, shown
from simnet.core.files import read_bytes
from simnet.core.schema import decode

ABOUT = "card.json"
WHAT = "simnet card"
FORMAT = 1
PARTS: dict[str, str] = {
    "checks": "tests of kernels, optimizers and systems on the card",
    "kernels": "kernels over sizes",
    "step": "the optimizer's step and its memory",
    "models": "forward and backward of the shipped models",
    "interference": "backward during communication",
    "links": "collectives between cards",
    "training": "steps of training over all cards",
}
"""What each part measures, in the order of measuring."""
GPU = "cuda"
CPU_LABEL = "CPU, not a card"
# Words of a card's name that tell cards of one kind apart from no other: vendor, family, socket, kind of memory.
_LEFT_OUT = re.compile(r"NVIDIA|Tesla|GeForce|AMD|Instinct|Radeon|SXM\d?|HBM\d\w?", re.IGNORECASE)
_MEMORY = re.compile(r"\d+GB", re.IGNORECASE)


class PartState(msgspec.Struct, frozen=True, kw_only=True):
    """How far a part has come.

    Attributes:
        status: such as "done", "skipped" or "failed".
        reason: of a part that is not done.
        seconds: that it took.
    """

    status: str = ""
    reason: str = ""
    seconds: float = 0.0


class CardFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What card.json says of the first card.

    Attributes:
        name: as its driver gives it, or the processor.
        compute_capability: such as "9.0".
        memory_bytes: of the card.
        num_cards: cards that worked together; 0 on a CPU.
    """

    name: str = ""
    compute_capability: str = ""
    memory_bytes: float = 0.0
    num_cards: int = 1


class CardSoftware(msgspec.Struct, frozen=True, kw_only=True):
    """Versions; empty where there is none.

    Attributes:
        torch: of PyTorch.
        triton: of Triton.
        cuda: that PyTorch was built with.
        rocm: that PyTorch was built with.
        nccl: of NCCL.
        driver: of the card.
    """

    torch: str = ""
    triton: str = ""
    cuda: str = ""
    rocm: str = ""
    nccl: str = ""
    driver: str = ""


class CardAbout(msgspec.Struct, frozen=True, kw_only=True):
    """What card.json says; it says more.

    Attributes:
        what: what the file is: "simnet card".
        format: of the file; a newer one is refused.
        created: date in ISO 8601.
        command: the command that wrote the file.
        device: "cuda" or "cpu".
        quick: whether only the smallest sizes were measured.
        card: what is known of the first card.
        software: versions on its machine.
        notes: sentences about the card, such as that others use it.
        parts: how far each has come, by name.
    """

    what: str
    format: Annotated[int, msgspec.Meta(ge=1)]
    created: str = ""
    command: str = ""
    device: str
    quick: bool = False
    card: CardFacts
    software: CardSoftware = CardSoftware()
    notes: tuple[str, ...] = ()
    parts: dict[str, PartState] = {}


@dataclass(frozen=True, kw_only=True)
class CardFolder:
    """The measurements of one card.

    Attributes:
        path: of the folder.
        about: the content of card.json.
        files: measurement files by part, with their paths.
        label: of the card as clusters and workloads name it, such as "A100-80GB".
    """

    path: Path
    about: CardAbout
    files: Mapping[str, tuple[Path, MeasurementFile]]
    label: str

    @property
    def is_card(self) -> bool:
        """Tell whether a GPU was measured."""
        return self.about.device == GPU

    @property
    def stem(self) -> str:
        """Name of the card's files, such as "a100_80gb"."""
        return file_stem(self.label) if self.is_card else "cpu"

    @property
    def num_cards(self) -> int:
        """Cards that worked together."""
        return max(1, self.about.card.num_cards)

    @property
    def measurements(self) -> list[MeasurementFile]:
        """The measurement files, in the order of `PARTS`."""
        return [whole for _, whole in self.files.values()]

    @property
    def failed_checks(self) -> list[str]:
        """Names of the checks that did not hold."""
        return [check.name for whole in self.measurements for check in whole.checks if not check.passed]

    def series(self, part: str, kind: str, name: str = "") -> list[Series]:
        """Return the series of a kind (and a name) in the file of a part; none if it was not measured."""
        whole = self.files[part][1].series if part in self.files else ()
        return [series for series in whole if series.kind == kind and name in ("", series.name)]

    def missing(self) -> dict[str, str]:
        """Return why each part that has no file was not measured, by name; "" where that is not known."""
        states = self.about.parts
        return {
            part: f"{state.status}: {state.reason}" if (state := states.get(part)) and state.reason else ""
            for part in PARTS
            if part not in self.files
        }


def read(folder: Path, *, accepts_cpu: bool) -> CardFolder:
    """Read a folder.

    Args:
        folder: of `simnet measure gpu`.
        accepts_cpu: whether measurements of a CPU will do, as for a trial.

    Raises:
        SimnetError: there is nothing, a file is damaged, the files are of several cards, or of none.
    """
    if not folder.is_dir():
        raise SimnetError(f"{folder}: no such directory; name the one that simnet measure gpu -o has written")
    about = _about(folder / ABOUT)
    paths = {part: folder / f"{part}.json" for part in PARTS}
    files = {part: (path, measurement_file.read(path)) for part, path in paths.items() if path.exists()}
    if not files:
        raise SimnetError(
            f"{folder}: no part is there ({', '.join(PARTS)}); measure with simnet measure gpu -o {folder}"
        )
    if about.device != GPU and not accepts_cpu:
        raise SimnetError(
            f"{folder}: was measured on a CPU: a calibration of a card needs a GPU; run make gpu there, or add "
            "--accept-cpu to try the command"
        )
    name = about.card.name
    if about.device == GPU:
        _check_one_card(folder, name, files)
    return CardFolder(
        path=folder, about=about, files=files, label=card_label(name) if about.device == GPU else CPU_LABEL
    )


def _about(path: Path) -> CardAbout:
    if not path.exists():
        raise SimnetError(f"{path}: is missing: it says which card was measured; measure again with simnet measure gpu")
    about = decode(CardAbout, read_bytes(path), str(path))
    if about.what != WHAT:
        raise SimnetError(f"{path}: what: {shown(about.what)}: must be {WHAT!r}; give a folder of simnet measure gpu")
    if about.format > FORMAT:
        raise SimnetError(f"{path}: format: {about.format}: this version reads up to {FORMAT}; update simnet")
    if about.device == GPU and not about.card.name:
        raise SimnetError(f"{path}: card.name: is missing: it names the files; measure again with simnet measure gpu")
    return about


def _check_one_card(folder: Path, name: str, files: Mapping[str, tuple[Path, MeasurementFile]]) -> None:
    """Refuse files of another card than that of card.json."""
    for path, whole in files.values():
        devices = {setup.device for setup in whole.setups}
        if devices != {GPU}:
            raise SimnetError(f"{path}: was measured on a CPU, and {ABOUT} names {name!r}: keep one folder for each")
        if whole.hardware.gpu and whole.hardware.gpu != name:
            raise SimnetError(
                f"{path}: was measured on {shown(whole.hardware.gpu)}, and {ABOUT} names {shown(name)}: a folder holds "
                f"one card; measure again with simnet measure gpu --force -o {folder}"
            )


def archive(folder: CardFolder) -> bytes:
    """Return card.json and the measurement files, every sample, as a zip; equal files give equal bytes."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as packed:
        for path in (folder.path / ABOUT, *(path for path, _ in folder.files.values())):
            # Of a fixed date: what a zip notes of the file system says nothing of the card.
            entry = zipfile.ZipInfo(path.name)
            packed.writestr(entry, read_bytes(path), compress_type=zipfile.ZIP_DEFLATED, compresslevel=9)
    return made.getvalue()


def card_label(name: str) -> str:
    """Return a card's name as clusters and workloads write it.

    Example:
        >>> [card_label(name) for name in ("NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3", "NVIDIA H200")]
        ['A100-80GB', 'H100-80GB', 'H200']
        >>> card_label("NVIDIA A100-PCIE-40GB"), card_label("Tesla V100-SXM2-32GB")
        ('A100-PCIE-40GB', 'V100-32GB')
    """
    # Drivers put the memory in the middle of the name, clusters at its end.
    words = re.findall(r"\w+", _LEFT_OUT.sub(" ", name))
    memory = [word for word in words if _MEMORY.fullmatch(word)]
    return "-".join([*(word for word in words if word not in memory), *memory]) or "GPU"


def file_stem(label: str) -> str:
    """Return the name of a card's files.

    Example:
        >>> file_stem("A100-80GB")
        'a100_80gb'
    """
    return re.sub(r"[^a-z0-9]+", "_", label.lower()).strip("_") or "gpu"


def versions_text(folder: CardFolder) -> str:
    """Return the versions of the software: "torch 2.11.0, triton 3.6.0, cuda 13.0, driver 580.65"."""
    known = msgspec.structs.asdict(folder.about.software)
    return ", ".join(f"{name} {version}" for name, version in known.items() if version)
