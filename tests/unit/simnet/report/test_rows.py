"""A run as a row of a CSV file."""

import csv
import io

from simnet.report.rows import row, table
from tests.helpers.report_samples import run_result


def test_a_number_of_a_table_reads_back_as_exactly_that_number() -> None:
    result = run_result(num_nodes=4)
    (read,) = csv.DictReader(io.StringIO(table([row(result)]).csv()))
    assert float(read["iteration_s"]) == result.result.iteration_s
    assert read["dense_iteration_s"] == ""
