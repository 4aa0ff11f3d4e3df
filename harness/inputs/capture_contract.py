"""The loss contract of a capture: what its metadata says, unless the user says otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from grpo_contract import GRPOLossContract, InputError, Problem, TokenNormalizer
from harness.inputs.capture_fields import as_text, field_problems, stored_fields
from harness.inputs.capture_header import CaptureHeader

if TYPE_CHECKING:
    from harness.settings.run_config import RunConfig

_DTYPE_NAMES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}
_SETTINGS = {"kl_estimator": "kl", "token_normalizer": "normalizer"}
_NORMALIZERS_OWN = ("fixed_constant", "alpha", "sequence_denominator")


def capture_contract(header: CaptureHeader, config: RunConfig) -> tuple[GRPOLossContract, tuple[str, ...]]:
    """The contract of a capture, and notes on every value of its metadata that the user replaced.

    Raises ContractError for a contract that cannot hold, InputError when beta needs a reference that the
    file lacks and for metadata that is nearly, but not, a field of the contract.
    """
    if problems := field_problems(header.metadata):
        raise InputError(
            [Problem(each.code, f"{header.path}: {each.where}", each.expected, each.got) for each in problems]
        )
    fields, notes = _fields(header, config)
    contract = _contract(header, fields, config.tiles)
    if contract.call_problems(has_reference=header.has_reference):
        where, beta = f"{header.path}: ref_logits", as_text(contract.objective.beta)
        expected = f"reference logits (beta is {beta}; without a reference give --beta 0)"
        raise InputError(Problem("input.missing", where, expected, "no such tensor"))
    return contract, notes


def _fields(header: CaptureHeader, config: RunConfig) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The contract fields that hold, and a note on every stored one that the user replaced or left out."""
    stored, given = stored_fields(header.metadata), config.contract_fields()
    default = TokenNormalizer.GLOBAL_ACTIVE_TOKENS
    wanted, held = given.get("token_normalizer"), stored.get("token_normalizer", default)
    notes = []
    if wanted is not None and wanted != held:
        # What belongs to a normalizer goes with it.
        gone = {name: stored.pop(name) for name in _NORMALIZERS_OWN if name in stored and name not in given}
        by = f"token_normalizer {as_text(wanted)} ({_origin('token_normalizer', config)})"
        notes += [f"{by} leaves out {name} {as_text(value)} of the capture" for name, value in gone.items()]
    notes += [
        f"{name} {as_text(given[name])} ({_origin(name, config)}) replaces {as_text(value)} of the capture"
        for name, value in stored.items()
        if name in given and given[name] != value
    ]
    return stored | given, tuple(notes)


def _contract(header: CaptureHeader, fields: Mapping[str, Any], tiles: int | None) -> GRPOLossContract:
    num_sequences, padded_seq_len, columns = header.shape
    return GRPOLossContract.for_batch(
        num_sequences=num_sequences,
        padded_seq_len=padded_seq_len,
        vocab_size=int(header.metadata.get("real_vocab_size", columns)),
        padded_vocab_size=columns,
        group_boundaries=header.group_boundaries,
        num_vocab_tiles=tiles,
        dtype=_DTYPE_NAMES[header.tensors["policy_logits"].dtype],
        **fields,
    )


def _origin(name: str, config: RunConfig) -> str:
    return config.where(_SETTINGS.get(name, name))
