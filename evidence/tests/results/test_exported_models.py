"""What exports a model's gradients gives the shipped file."""

import json

from evidence import ROOT
from evidence.studies import export_models
from tests.helpers.needs import needs


def test_regenerating_resnet50_gives_the_shipped_file() -> None:
    needs("torch", "torchvision")
    (definition,) = [definition for definition in export_models.WITH_GRADIENTS if definition.name == "resnet50"]
    regenerated = json.loads(export_models.to_json(export_models.describe(definition)))
    shipped = json.loads((ROOT / "scenarios/workloads/gradients/resnet50.json").read_text(encoding="utf-8"))
    del regenerated["versions"], shipped["versions"]
    assert regenerated == shipped
