"""The JSON Schema of a report. Regenerate the shipped copy with

python -m reports.schema > reports/report.schema.json
"""

import json
import sys

from reports.model import Report

_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def schema_text() -> str:
    """Return the schema of a written report (every field present) as JSON text."""
    schema = {"$schema": _DIALECT, **Report.model_json_schema(mode="serialization")}
    return json.dumps(schema, indent=2) + "\n"


if __name__ == "__main__":
    sys.stdout.write(schema_text())
