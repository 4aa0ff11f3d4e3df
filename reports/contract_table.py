"""The contract as a table: a line for each field, one value where all batches agree."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pydantic import JsonValue

_MAX_BATCHES = 8


@dataclass(frozen=True)
class ContractTable:
    """Fields by path; `columns` are batches, empty where there is one contract for all."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[str, ...]], ...]
    hidden: int


def contract_table(contract: Mapping[str, JsonValue]) -> ContractTable:
    """Return the table. A row whose values all agree holds that one value."""
    by_batch = _by_batch(contract)
    chosen = dict(list(by_batch.items())[:_MAX_BATCHES])
    flat = {name: dict(_leaves(fields, "")) for name, fields in chosen.items()}
    paths = dict.fromkeys(path for fields in flat.values() for path in fields)
    rows = [(path, _agreed(tuple(fields.get(path, "-") for fields in flat.values()))) for path in paths]
    columns = tuple(chosen) if len(chosen) > 1 else ()
    return ContractTable(columns, tuple(rows), len(by_batch) - len(chosen))


def _by_batch(contract: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    if contract and all(isinstance(each, dict) and "objective" in each for each in contract.values()):
        return dict(contract)
    return {"": dict(contract)} if contract else {}


def _leaves(value: JsonValue, path: str) -> Iterator[tuple[str, str]]:
    if not isinstance(value, dict):
        yield path, value if isinstance(value, str) else json.dumps(value)
        return
    for name, each in value.items():
        yield from _leaves(each, f"{path}.{name}" if path else name)


def _agreed(values: tuple[str, ...]) -> tuple[str, ...]:
    return values[:1] if len(set(values)) == 1 else values
