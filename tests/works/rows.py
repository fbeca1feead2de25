"""All rows, imported for their being made."""

from tests.works import rows_of_models, rows_of_scripts, rows_of_states, rows_of_steps
from tests.works.table import ROWS

__all__ = ["ROWS", "rows_of_models", "rows_of_scripts", "rows_of_states", "rows_of_steps"]
