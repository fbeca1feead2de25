"""The text of a published set: blocks of a template beside its data, with numbers of this run."""

from collections.abc import Mapping, Sequence

from simnet import templates
from simnet.validate.outcome import Block, Prediction


def rendered(name: str, block: Block, predictions: Sequence[Prediction], facts: Mapping[str, object]) -> str:
    """Return a block of a set's template as paragraphs of one line each; "" if the template has no such block.

    Templates know `predictions`, their `errors()` and `shorts()` (how much is missing: errors with the other sign), of
    some by series or by columns of the row, and the facts of the set:
    `{{ errors(model="ResNet-50") | max | f(".1%") }}`.
    """

    def errors(**wanted: object) -> list[float]:
        return [one.error for one in predictions if all(_fits(one, key, value) for key, value in wanted.items())]

    def shorts(**wanted: object) -> list[float]:
        return [-error for error in errors(**wanted)]

    given = {"predictions": predictions, "errors": errors, "shorts": shorts, **facts}
    return templates.paragraphs("simnet.validate", "sets", f"{name}.md", block, given)


def _fits(prediction: Prediction, key: str, wanted: object) -> bool:
    value = prediction.series if key == "series" else getattr(prediction.row, key)
    return value in wanted if isinstance(wanted, tuple) else value == wanted
