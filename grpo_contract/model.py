"""The model all contracts share: frozen, no unknown fields, and every problem in one error."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextvars import ContextVar
from copy import deepcopy
from enum import Enum
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from grpo_contract.errors import GRPOVerifyError, Problem, error_from

LARGEST_FLOAT32 = (2 - 2**-23) * 2.0**127
SMALLEST_FLOAT32 = 2.0**-126
"""The smallest that is normal: below it float32 loses digits, and a GPU may take it for 0."""
_gathered: ContextVar[list[Problem] | None] = ContextVar("gathered", default=None)


class ContractModel(BaseModel):
    """A frozen part of a contract.

    Cross-field rules live in `own_problems`. While an outer contract is built from plain data, nested parts
    add their problems to one list instead of raising, so that the caller sees all of them at once.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, str_strip_whitespace=True)
    section: ClassVar[str] = ""
    error_code: ClassVar[str] = "contract"

    def __init__(self, **fields: Any) -> None:
        if _gathered.get() is not None:
            super().__init__(**fields)
            return
        found: list[Problem] = []
        token = _gathered.set(found)
        try:
            super().__init__(**fields)
        except ValidationError as error:
            found.extend(_from_pydantic(error, type(self)))
            found.extend(_rest(type(self), fields, error, found))
        finally:
            _gathered.reset(token)
        if found:
            raise error_from(found)

    @model_validator(mode="after")
    def _gather(self) -> Self:
        gathered = _gathered.get()
        if gathered is None:
            gathered = []
        found = self.own_problems()
        told = {problem.where for problem in found}
        found += [problem for problem in self._float_problems() if problem.where not in told]
        gathered.extend(problem for problem in found if problem not in gathered)
        return self

    def _float_problems(self) -> list[Problem]:
        """Numbers beyond float32, in which all arithmetic is."""
        values = {name: getattr(self, name) for name in type(self).model_fields}
        return [
            self.problem("range", name, f"at most {LARGEST_FLOAT32:.8g} (the largest float32)", value)
            for name, value in values.items()
            if isinstance(value, float) and abs(value) > LARGEST_FLOAT32
        ]

    def own_problems(self) -> list[Problem]:
        """Rules between the fields of this part."""
        return []

    @classmethod
    def problems(cls, fields: Mapping[str, Any]) -> tuple[Problem, ...]:
        """Everything wrong with `fields`, without raising: empty when the part could be built from them."""
        try:
            cls(**fields)
        except GRPOVerifyError as error:
            return error.problems
        return ()

    @classmethod
    def model_validate(cls, obj: Any, **_: Any) -> Self:
        """Build from a mapping, with the errors of plain construction; a model stays as it is."""
        if isinstance(obj, cls):
            return obj
        if not isinstance(obj, Mapping):
            raise error_from([cls.problem("type", cls.__name__, "a mapping", type(obj).__name__)])
        return cls(**obj)

    @classmethod
    def model_validate_json(cls, json_data: str | bytes | bytearray, **_: Any) -> Self:
        """Build from JSON text, with the errors of plain construction."""
        from pydantic_core import from_json

        try:
            fields = from_json(json_data)
        except ValueError as error:
            raise error_from([cls.problem("json", cls.__name__, "valid JSON", str(error))]) from None
        if not isinstance(fields, dict):
            raise error_from([cls.problem("json", cls.__name__, "a JSON object", type(fields).__name__)])
        return cls(**fields)

    @classmethod
    def problem(cls, detail: str, field: str, expected: object, got: object) -> Problem:
        """A problem of this part: its code and the place of `field` are filled in."""
        where = f"{cls.section}.{field}" if cls.section else field
        return Problem(f"{cls.error_code}.{detail}", where, str(expected), show(got))

    def range_problems(
        self, field: str, *, above: float | None = None, least: float | None = None
    ) -> list[Problem]:
        """A problem when the number in `field` is not above `above`, or is less than `least`.

        What is above 0 must be above it in float32 too.
        """
        value = getattr(self, field)
        if above is not None and not value > above:
            return [self.problem("range", field, f"a number above {above:g}", value)]
        if above == 0 and value < SMALLEST_FLOAT32:
            expected = f"at least {SMALLEST_FLOAT32:.8g} (the smallest normal float32)"
            return [self.problem("range", field, expected, value)]
        if least is not None and not value >= least:
            return [self.problem("range", field, f"at least {least:g}", value)]
        return []


def show(value: object) -> str:
    """A value as a user would type it."""
    if isinstance(value, Enum):
        return str(value.value)
    if value is None:
        return "nothing"
    if isinstance(value, float) and math.isfinite(value) and value == int(value) and abs(value) < 1e16:
        return str(value)
    return value if isinstance(value, str) else repr(value)


def _from_pydantic(error: ValidationError, model: type[ContractModel]) -> list[Problem]:
    found = []
    for item in error.errors(include_url=False):
        owner = _owner(model, item["loc"])
        path = ".".join([*([model.section] if model.section else []), *map(str, item["loc"])]) or model.__name__
        got = "nothing" if item["type"] == "missing" else show(item["input"])
        expected = _expected(item["type"], item["msg"])
        found.append(Problem(f"{owner.error_code}.{item['type']}", path, expected, got))
    return found


def _owner(model: type[ContractModel], path: tuple[int | str, ...]) -> type[ContractModel]:
    """The part of `model` that the field at `path` belongs to."""
    for part in path[:-1]:
        inner = model.model_fields[part].annotation if part in model.model_fields else None
        if not (isinstance(inner, type) and issubclass(inner, ContractModel)):
            break
        model = inner
    return model


def _rest(
    model: type[ContractModel], fields: dict[str, Any], error: ValidationError, found: list[Problem]
) -> list[Problem]:
    """What is wrong beside the fields pydantic refused: judged with those left at their defaults."""
    pruned = deepcopy(fields)
    for item in error.errors(include_url=False):
        _drop(pruned, item["loc"])
    if pruned == fields:
        return []
    seen = {problem.where for problem in found}
    token = _gathered.set(None)
    try:
        return [problem for problem in model.problems(pruned) if problem.where not in seen]
    finally:
        _gathered.reset(token)


def _drop(fields: dict[str, Any], path: tuple[int | str, ...]) -> None:
    for part in path[:-1]:
        if not isinstance(fields, dict) or part not in fields:
            return
        fields = fields[part]
    if isinstance(fields, dict):
        fields.pop(str(path[-1]) if path else "", None)


def _expected(kind: str, message: str) -> str:
    if kind == "extra_forbidden":
        return "no such field"
    if kind == "missing":
        return "a value"
    lowered = message[:1].lower() + message[1:]
    return lowered.removeprefix("input should be ").removeprefix("value error, ")
