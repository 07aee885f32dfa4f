"""ATen operations as nodes of score programs: a table (table, results), filled by elementwise operations (elementwise,
arithmetic), reductions, indexing and views; and operations written as others (composites)."""

# Each of these adds its operations to the table.
from flashlift.torch._trace.operations import elementwise, indexing, reductions, views  # noqa: F401
from flashlift.torch._trace.operations.composites import COMPOSITES
from flashlift.torch._trace.operations.table import translate, without_change

__all__ = ["COMPOSITES", "translate", "without_change"]
