"""The loss contract: all that fixes the numbers of a GRPO loss."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

from pydantic import Field

from grpo_contract.errors import LossContractError, Problem, error_from
from grpo_contract.fingerprint import fingerprint, flatten
from grpo_contract.geometry import BatchGeometry, uniform_boundaries
from grpo_contract.logprob import LogprobContract, default_num_vocab_tiles
from grpo_contract.model import ContractModel, show
from grpo_contract.objective import AdvantageSpec, ObjectiveSpec
from grpo_contract.reduction import DeterminismScope, ReductionSpec
from grpo_contract.sharding import ShardingSpec


@dataclass(frozen=True)
class FieldDifference:
    """A field in which two contracts differ."""

    field: str
    mine: Any
    theirs: Any


class GRPOLossContract(ContractModel):
    """Objective, reduction, logprob path and batch geometry; equal on all ranks of a layout.

    `math` names the arithmetic: `device` is the device's own exp and log, whose bits are comparable on one
    build and device model only.
    """

    error_code: ClassVar[str] = "loss_contract"

    objective: ObjectiveSpec = Field(default_factory=ObjectiveSpec)
    reduction: ReductionSpec = Field(default_factory=ReductionSpec)
    logprob: LogprobContract
    geometry: BatchGeometry
    math: Literal["device"] = "device"

    @classmethod
    def for_batch(
        cls,
        *,
        num_sequences: int,
        padded_seq_len: int,
        vocab_size: int,
        padded_vocab_size: int | None = None,
        group_boundaries: tuple[int, ...] | list[int] | None = None,
        samples_per_prompt: int | None = None,
        num_vocab_tiles: int | None = None,
        dtype: str = "float32",
        **fields: Any,
    ) -> Self:
        """Build from flat names: any field of objective, advantage (as `advantage`, a kind), or reduction.

        Exactly one of group_boundaries and samples_per_prompt. Aliases: epsilon_low, epsilon_high, and
        clip_eps for those clip widths that are not given by name. Raises ContractError with every problem.
        """
        columns = vocab_size if padded_vocab_size is None else padded_vocab_size
        boundaries, found = _boundaries(num_sequences, group_boundaries, samples_per_prompt)
        found += _doubly_given(fields)
        scope = fields.get("determinism_scope", DeterminismScope.CROSS_LAYOUT_BITWISE)
        sections: dict[str, Any] = _sections(fields)
        sections |= {
            "logprob": {
                "dtype": dtype,
                "real_vocab_size": vocab_size,
                "padded_vocab_size": columns,
                "num_vocab_tiles": _default_tiles(columns) if num_vocab_tiles is None else num_vocab_tiles,
                "determinism_scope": scope,
            },
            "geometry": {
                "num_sequences": num_sequences,
                "padded_seq_len": padded_seq_len,
                "group_boundaries": boundaries,
            },
        }
        if found:
            rest = [each for each in cls.problems(sections) if "group_boundaries" not in each.where]
            raise error_from([*found, *rest])
        return cls(**sections)

    def own_problems(self) -> list[Problem]:
        return [*self._scope_problems(), *self._singleton_problems()]

    def _scope_problems(self) -> list[Problem]:
        mine, logprob = self.reduction.determinism_scope, self.logprob.determinism_scope
        if mine is logprob:
            return []
        strong = DeterminismScope.CROSS_LAYOUT_BITWISE
        relation = "stronger" if mine is strong else "weaker"
        expected = f"the logprob path's scope {logprob.value}"
        got = f"{mine.value}, which is {relation}"
        return [self.problem("scope", "reduction.determinism_scope", expected, got)]

    def _singleton_problems(self) -> list[Problem]:
        if not self.objective.advantage.uses_std:
            return []
        kind = self.objective.advantage.kind.value
        return [
            self.problem(
                "singleton",
                f"geometry.group_boundaries[{index}]",
                f"at least 2 sequences in each group ({kind} needs a spread; mean_only does not)",
                f"group {index} = [{start}, {stop})",
            )
            for index, (start, stop) in enumerate(self.geometry.groups)
            if stop - start == 1
        ]

    def call_problems(self, *, has_reference: bool) -> tuple[Problem, ...]:
        """What is wrong with calling this contract with or without reference logits."""
        if self.objective.beta > 0 and not has_reference:
            beta = show(self.objective.beta)
            return (self.problem("reference", "ref_logits", f"reference logits (beta is {beta})", None),)
        return ()

    def sharding_problems(self, sharding: ShardingSpec) -> tuple[Problem, ...]:
        """What is wrong with `sharding` as a partition of this batch and vocabulary."""
        found = sharding.partition_problems(self.logprob, self.geometry)
        owned = sharding.num_local_sequences * self.geometry.padded_seq_len
        stated = self.logprob.num_tokens
        if not found and stated is not None and stated != owned:
            expected = (
                f"{owned} (owned sequences {sharding.sequence_shard} x {self.geometry.padded_seq_len} slots)"
            )
            found.append(LogprobContract.problem("num_tokens", "num_tokens", expected, stated))
        return tuple(found)

    def check_sharding(self, sharding: ShardingSpec) -> None:
        """Raise one ContractError with everything `sharding_problems` finds."""
        problems = self.sharding_problems(sharding)
        if problems:
            raise error_from(problems)

    def numeric_content(self) -> dict[str, Any]:
        """All that fixes the numbers: every field but the number of slots a rank owns."""
        content = self.model_dump(mode="json")
        del content["logprob"]["num_tokens"]
        return content

    def numeric_fingerprint(self, launch: Mapping[str, Any] | None = None) -> str:
        """Equal at every layout. `launch` is a backend's launch configuration where it fixes bits."""
        return fingerprint({"numeric": self.numeric_content(), "launch": dict(launch or {})})

    def invocation_fingerprint(self, sharding: ShardingSpec, launch: Mapping[str, Any] | None = None) -> str:
        """Equal on all ranks of one call: the numeric identity and the mesh."""
        numeric = self.numeric_fingerprint(launch)
        return fingerprint({"numeric": numeric, "mesh": sharding.mesh_content()})

    def differences(self, other: GRPOLossContract) -> tuple[FieldDifference, ...]:
        """The fields in which `other` differs, by dotted name."""
        mine, theirs = flatten(self.model_dump(mode="json")), flatten(other.model_dump(mode="json"))
        names = sorted(mine.keys() | theirs.keys())
        return tuple(
            FieldDifference(name, mine.get(name), theirs.get(name))
            for name in names
            if mine.get(name) != theirs.get(name)
        )


def _sections(fields: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Flat names to nested sections; an unknown name lands where `extra="forbid"` reports it."""
    objective: dict[str, Any] = {}
    advantage: dict[str, Any] = {}
    reduction: dict[str, Any] = {}
    for name, value in _with_aliases(fields).items():
        if name == "advantage" and isinstance(value, AdvantageSpec | Mapping):
            advantage |= value.model_dump() if isinstance(value, AdvantageSpec) else value
        elif name == "advantage":
            advantage["kind"] = value
        elif name in AdvantageSpec.model_fields:
            advantage[name] = value
        elif name in ReductionSpec.model_fields:
            reduction[name] = value
        else:
            objective[name] = value
    return {"objective": {**objective, "advantage": advantage}, "reduction": reduction}


ALIASES = {"epsilon_low": "clip_eps_low", "epsilon_high": "clip_eps_high"}


def _with_aliases(fields: Mapping[str, Any]) -> dict[str, Any]:
    named = {ALIASES.get(name, name): value for name, value in fields.items()}
    if "clip_eps" in named:
        both = named.pop("clip_eps")
        named = {"clip_eps_low": both, "clip_eps_high": both} | named
    return named


def _doubly_given(fields: Mapping[str, Any]) -> list[Problem]:
    return [
        Problem("loss_contract.alias", alias, f"nothing beside {name}", show(fields[alias]))
        for alias, name in ALIASES.items()
        if alias in fields and name in fields
    ]


def _default_tiles(columns: Any) -> int:
    # Whatever else is not a positive number of columns is refused where it was given.
    return default_num_vocab_tiles(columns) if isinstance(columns, int) and columns > 0 else 1


def _boundaries(num_sequences: Any, boundaries: Any, samples_per_prompt: Any) -> tuple[Any, list[Problem]]:
    """The offsets, or ones that stand in for them beside the problem."""
    if (boundaries is None) == (samples_per_prompt is None):
        got = "neither" if boundaries is None else "both"
        expected = "exactly one of group_boundaries and samples_per_prompt"
        return (0, num_sequences), [Problem("loss_contract.groups", "group_boundaries", expected, got)]
    if samples_per_prompt is None or not isinstance(num_sequences, int):
        return (0, num_sequences) if boundaries is None else boundaries, []
    try:
        return uniform_boundaries(num_sequences, samples_per_prompt), []
    except LossContractError as error:
        return (0, num_sequences), list(error.problems)
