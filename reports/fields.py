"""Field types that keep a report strictly valid JSON, whatever was measured or typed by a user."""

import math
from typing import Annotated

from pydantic import (
    BeforeValidator,
    Field,
    FiniteFloat,
    JsonValue,
    PlainSerializer,
    WithJsonSchema,
)

_NON_FINITE = ("inf", "-inf", "nan")


def _storable_text(value: object) -> object:
    # A file name that is no valid UTF-8 reaches Python with lone surrogates, which JSON cannot carry.
    return value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value


def _float_from_name(value: object) -> object:
    return float(value) if isinstance(value, str) and value in _NON_FINITE else value


def _float_or_name(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)


def storable(value: object) -> object:
    """Return `value` with non-finite floats named ("inf", "-inf", "nan") and text made storable."""
    if isinstance(value, dict):
        return {_storable_text(key): storable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [storable(item) for item in value]
    return _float_or_name(value) if isinstance(value, float) else _storable_text(value)


Text = Annotated[str, BeforeValidator(_storable_text)]
"""Text from anywhere; bytes that are no UTF-8 are spelt out."""

NamedFloat = Annotated[
    float,
    BeforeValidator(_float_from_name),
    PlainSerializer(_float_or_name, when_used="json"),
    WithJsonSchema({"anyOf": [{"type": "number"}, {"enum": list(_NON_FINITE)}]}),
]
"""A float that may be non-finite; in JSON those values are the strings "inf", "-inf" and "nan"."""

Count = Annotated[int, Field(ge=0)]
"""A number of things, or a zero-based position."""

Share = Annotated[FiniteFloat, Field(ge=0, le=1)]
"""A part of a whole, from 0 to 1."""

Seconds = Annotated[FiniteFloat, Field(ge=0)]
"""A measured time."""

Bits = Annotated[str, Field(pattern=r"^0x[0-9a-f]+$")]
"""The raw bit pattern of one element, such as 0x3f800000."""

JsonObject = Annotated[dict[str, JsonValue], BeforeValidator(storable)]
"""A free JSON object: environment or contract as its owner describes it."""
