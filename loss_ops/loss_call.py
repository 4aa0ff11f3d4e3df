"""One rank's call as the user made it: the raw arguments, and everything that is wrong with them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from grpo_contract import GRPOLossContract, Problem, ShardingSpec
from loss_ops.inputs import LossInputs, active_slots, flat_rows

SHOWN = 4
LARGEST_REWARD = 1e17
"""The squares of larger rewards leave float32, and their advantages would silently be 0."""


@dataclass(frozen=True)
class LossCall:
    """Arguments of `apply`. Group sizes are None where no group was passed."""

    policy_local_logits: Tensor
    action_ids: Tensor
    old_logps: Tensor
    rewards: Tensor
    contract: GRPOLossContract
    sharding: ShardingSpec
    completion_mask: Tensor | None = None
    ref_local_logits: Tensor | None = None
    group_sizes: tuple[int | None, int | None] = (None, None)

    @property
    def device(self) -> torch.device:
        """The device of the policy logits; where they are no tensor, of the first argument that is one."""
        given = (self.policy_local_logits, self.action_ids, self.old_logps, self.rewards)
        return next((each.device for each in given if isinstance(each, Tensor)), torch.device("cpu"))

    def inputs(self) -> LossInputs:
        """Views in the shapes of the stages; nothing as large as the logits is copied."""
        slots = (self.sharding.num_local_sequences, self.contract.geometry.padded_seq_len)
        ref = self.ref_local_logits
        return LossInputs(
            flat_rows(self.policy_local_logits.detach()),
            None if ref is None else flat_rows(ref.detach()),
            self.action_ids.reshape(slots).long(),
            self.old_logps.detach().reshape(slots),
            self.rewards.detach(),
            active_slots(self.completion_mask, self.action_ids).reshape(slots),
            self.contract,
            self.sharding,
        )

    def structure_problems(self) -> list[Problem]:
        """Contract, sharding, groups, types, shapes and dtypes: all that shows without reading a value."""
        found = [*self.contract.sharding_problems(self.sharding)]
        found += self.contract.call_problems(has_reference=self.ref_local_logits is not None)
        return found + list(self._group_problems()) + ([] if found else list(self._tensor_problems()))

    def _group_problems(self) -> Iterator[Problem]:
        degrees = (self.sharding.tp_degree, self.sharding.dp_degree)
        for axis, degree, size in zip(("tp", "dp"), degrees, self.group_sizes, strict=True):
            if size != degree and (size is not None or degree > 1):
                got = "no group" if size is None else f"a group of {size}"
                yield Problem("input.group", f"{axis}_group", f"a group of {degree} ranks", got)

    def _tensor_problems(self) -> Iterator[Problem]:
        sequences, length = self.sharding.num_local_sequences, self.contract.geometry.padded_seq_len
        slots, columns = sequences * length, self.sharding.num_local_columns
        logits_shapes = ((slots, columns), (sequences, length, columns))
        slot_shapes = ((slots,), (sequences, length))
        dtype = getattr(torch, self.contract.logprob.dtype.value)
        for name, tensor, shapes, dtypes in (
            ("policy_logits", self.policy_local_logits, logits_shapes, (dtype,)),
            ("ref_logits", self.ref_local_logits, logits_shapes, (dtype,)),
            ("action_ids", self.action_ids, slot_shapes, INTEGERS),
            ("old_logps", self.old_logps, slot_shapes, FLOATS),
            ("rewards", self.rewards, ((sequences,),), FLOATS + INTEGERS),
            ("completion_mask", self.completion_mask, slot_shapes, (torch.bool, *INTEGERS)),
        ):
            if isinstance(tensor, Tensor):
                yield from _tensor_problems(name, tensor, shapes, dtypes, self.device)
            elif tensor is not None or name not in OPTIONAL:
                yield Problem("input.type", name, "a tensor", type(tensor).__name__)

    def value_problems(self) -> list[Problem]:
        """Ids, old log-probabilities and rewards, where they count. Reads the tensors: synchronizes."""
        inputs, found = self.inputs(), []
        ids, vocab = inputs.action_ids_ST, self.contract.logprob.real_vocab_size
        bad_ids = inputs.active_ST & ((ids < 0) | (ids >= vocab))
        found += self._slot_problems("action_ids", ids, bad_ids, f"an id in [0, {vocab})", "id")
        old = inputs.old_logps_ST
        bad_old = inputs.active_ST & ~old.float().isfinite()
        found += self._slot_problems("old_logps", old, bad_old, "a finite number", "old_logps")
        found += self._reward_problems(inputs.rewards_S)
        if self.completion_mask is not None:
            found += self._mask_problems(self.completion_mask)
        return found

    def _reward_problems(self, rewards_S: Tensor) -> Iterator[Problem]:
        limited = self.contract.objective.advantage.uses_std
        largest = LARGEST_REWARD if limited else torch.finfo(torch.float32).max
        expected = f"a finite number of at most {largest:g} in size" if limited else "a finite number"
        start = self.sharding.sequence_shard[0]
        for index in (~(rewards_S.float().abs() <= largest)).nonzero().flatten().tolist()[:SHOWN]:
            value = str(rewards_S[index].item())
            yield Problem("input.rewards", f"rewards at [{start + index}]", expected, value)

    def _mask_problems(self, mask: Tensor) -> list[Problem]:
        values = mask.reshape(-1, self.contract.geometry.padded_seq_len)
        bad = (values != 0) & (values != 1)
        return self._slot_problems("completion_mask", values, bad, "0 or 1", "mask")

    def _slot_problems(
        self, name: str, values_ST: Tensor, bad_ST: Tensor, expected: str, code: str
    ) -> list[Problem]:
        places = bad_ST.nonzero().tolist()
        start = self.sharding.sequence_shard[0]
        found = [
            Problem(f"input.{code}", f"{name} at [{start + s}, {t}]", expected, str(values_ST[s, t].item()))
            for s, t in places[:SHOWN]
        ]
        if len(places) > SHOWN:
            rest = len(places) - SHOWN
            found.append(Problem(f"input.{code}", f"{name} at {rest} more slots", expected, "values like these"))
        return found

    def digests(self) -> dict[str, str]:
        """sha256 of what TP siblings must hold in common: ids, old log-probabilities, rewards and mask."""
        inputs = self.inputs()
        active = inputs.active_ST
        held = {
            "action_ids": torch.where(active, inputs.action_ids_ST, 0),
            "old_logps": torch.where(active, inputs.old_logps_ST.float(), 0.0),
            "rewards": inputs.rewards_S.float(),
            "completion_mask": active,
        }
        return {name: digest(tensor) for name, tensor in held.items()}


OPTIONAL = ("ref_logits", "completion_mask")
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


def digest(tensor: Tensor) -> str:
    """sha256 over a tensor's bytes in row order."""
    flat = tensor.detach().contiguous().cpu().view(torch.uint8)
    return hashlib.sha256(flat.numpy().tobytes()).hexdigest()


def _tensor_problems(
    name: str,
    tensor: Tensor,
    shapes: tuple[tuple[int, ...], ...],
    dtypes: tuple[torch.dtype, ...],
    device: torch.device,
) -> Iterator[Problem]:
    if tuple(tensor.shape) not in shapes:
        expected = "shape " + " or ".join(str(list(shape)) for shape in shapes)
        yield Problem("input.shape", name, expected, f"shape {list(tensor.shape)}")
    if tensor.dtype not in dtypes:
        expected = " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
        yield Problem("input.dtype", name, expected, str(tensor.dtype).removeprefix("torch."))
    if tensor.device != device:
        yield Problem("input.device", name, f"device {device}, where the policy logits are", str(tensor.device))
