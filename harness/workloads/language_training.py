"""GRPO on a causal language model as a workload: sampled answers, AdamW, gradients block by block."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from grpo_contract import GRPOLossContract, ShardingSpec
from harness.workloads.allocation import make_allocator
from harness.workloads.fixed_shape import answer_logits
from harness.workloads.language_model import LoadedModel
from harness.workloads.language_rollout import Sampled, Sampling, sample_rounds
from harness.workloads.ranks import Place, TrainingProgram
from harness.workloads.token_task import TokenTask, cloze_task
from harness.workloads.training import Rollout
from loss_ops import kernel_registry
from loss_ops.fixed_batch import Part
from loss_ops.vocab_logprob import VocabParallelLogprobOp


@dataclass(frozen=True)
class LanguageSettings:
    """Sampling, loss and optimizer; the defaults are the GPT-2 program's. `block` sequences make one forward."""

    seed: int = 0
    block: int = 1
    samples: int = 8
    allocator: str = "uniform"
    beta: float = 0.01
    clip_eps: float = 0.2
    learning_rate: float = 1e-5
    reduction: dict[str, Any] = field(default_factory=dict)
    backend: str | None = None


class LanguageWorkload:
    """A model, its task and AdamW. `model(input_ids=..., use_cache=False).logits` is all that is asked of it."""

    def __init__(
        self, loaded: LoadedModel | Any, settings: LanguageSettings, task: TokenTask | None = None
    ) -> None:
        self.model = loaded.model if isinstance(loaded, LoadedModel) else loaded
        self.task = task or cloze_task(loaded.tokenizer)
        self.settings, self.block = settings, settings.block
        self.trained = {name: each for name, each in self.model.named_parameters() if each.requires_grad}
        first = next(iter(self.trained.values()))
        self.device, self.dtype = first.device, first.dtype
        self.columns = self._vocabulary()
        self.optimizer = torch.optim.AdamW(
            self.trained.values(), settings.learning_rate, (0.9, 0.999), 1e-8, weight_decay=0.0, foreach=False
        )
        contract = self.contract(tuple(range(0, 2 * len(self.task.prompts) + 1, 2)))
        dispatched = kernel_registry.get_loss_op(contract, device=self.device, backend=settings.backend)
        self.op, self._fused = dispatched.op, dispatched.provenance["backend"] == "triton"
        self._logprob = VocabParallelLogprobOp(self.op.stages)
        self._reference = self._make_reference() if settings.beta else None

    def contract(self, group_boundaries: tuple[int, ...]) -> GRPOLossContract:
        """Mean over sequences, k3, sqrt(population variance + 1e-8), unless the reduction says otherwise."""
        settings = self.settings
        fields: dict[str, Any] = {"token_normalizer": "per_sequence_then_mean"} | settings.reduction
        return GRPOLossContract.for_batch(
            num_sequences=group_boundaries[-1],
            padded_seq_len=self.task.max_new_tokens,
            vocab_size=self.columns,
            group_boundaries=group_boundaries,
            dtype=str(self.dtype).removeprefix("torch."),
            clip_eps=settings.clip_eps,
            beta=settings.beta,
            std_eps=1e-8,
            std_eps_mode="variance",
            **fields,
        )

    def parameters(self) -> dict[str, Tensor]:
        """The trained tensors in the model's order."""
        return {name: each.detach() for name, each in self.trained.items()}

    def rollout(self, update: int, place: Place) -> TrainingProgram[Rollout]:
        """Rounds of the allocator; each rank samples its blocks of a round, then all know all answers."""
        settings = self.settings
        allocator = make_allocator(settings.allocator, len(self.task.prompts), settings.samples)
        sampling = Sampling(self.model, self.task, self.block, settings.seed, update)
        sampled = yield from sample_rounds(sampling, allocator, place)
        ids, lengths = sampled.answers[:, :-1], sampled.answers[:, -1:]
        mask = torch.arange(ids.shape[1], device=ids.device)[None] < lengths
        return Rollout(self.contract(sampled.group_boundaries), ids, mask, sampled)

    def rewards(self, rollout: Rollout, start: int, stop: int) -> Tensor:
        """What these sequences earned."""
        sampled: Sampled = rollout.source
        return sampled.rewards_B[start:stop]

    def logprobs(self, rollout: Rollout, start: int, stop: int) -> Tensor:
        """[S, T] block by block, at the shapes of training: the first ratio of an update is exactly 1."""
        place = ShardingSpec.even(1, 1, contract=rollout.contract)
        found = []
        for first, last in self._blocks(start, stop):
            ids, active = rollout.action_ids_BT[first:last], rollout.mask_BT[first:last]
            with torch.no_grad():
                logits = self.logits(rollout, first, last)
            logp = self._logprob.apply(
                logits.flatten(0, 1), ids.flatten(), contract=rollout.contract.logprob, sharding=place,
                active=active.flatten(),
            )  # fmt: skip
            found.append(logp.view(ids.shape))
        return torch.cat(found)

    def part(
        self, rollout: Rollout, start: int, stop: int, apply: Callable[..., Part]
    ) -> tuple[Part, Iterable[tuple[int, Tensor]]]:
        """Forward of each block, one call of the loss op, backward of each block.

        A single block hands its logits to the op as they are; on the fused op its gradient replaces them.
        """
        blocks = self._blocks(start, stop)
        logits = [self.logits(rollout, first, last) for first, last in blocks]
        reference = self.reference(rollout, start, stop)
        if len(blocks) == 1:
            options = {"inplace": True} if self._fused else {}
            part = apply(logits[0], start=start, ref_local_logits=reference, **options)
            part.result.loss.backward()
            return part, [(start // self.block, self._taken_gradient())]
        joined = torch.cat(logits).detach().requires_grad_()
        part = apply(joined, start=start, ref_local_logits=reference)
        (gradient,) = torch.autograd.grad(part.result.loss, joined)
        pieces = gradient.split([last - first for first, last in blocks])
        return part, self._block_gradients(blocks, logits, pieces)

    def _block_gradients(
        self, blocks: list[tuple[int, int]], logits: list[Tensor], pieces: Iterable[Tensor]
    ) -> Iterator[tuple[int, Tensor]]:
        for (first, _), each, piece in zip(blocks, logits, pieces, strict=True):
            each.backward(piece)
            yield first // self.block, self._taken_gradient()

    def _taken_gradient(self) -> Tensor:
        gradients = [torch.zeros_like(each) if each.grad is None else each.grad for each in self.trained.values()]
        flat = torch.cat([each.flatten() for each in gradients])
        self.optimizer.zero_grad(set_to_none=True)
        return flat

    def step(self, gradient: Tensor) -> None:
        """AdamW (0.9, 0.999), eps 1e-8, no decay."""
        pieces = gradient.split([each.numel() for each in self.trained.values()])
        for each, piece in zip(self.trained.values(), pieces, strict=True):
            each.grad = piece.view_as(each)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def logits(self, rollout: Rollout, start: int, stop: int) -> Tensor:
        """[S, T, V] of one block under the present parameters."""
        sampled: Sampled = rollout.source
        return answer_logits(self.model, self.task, sampled.prompts[start:stop], rollout.action_ids_BT[start:stop])

    def reference(self, rollout: Rollout, start: int, stop: int) -> Tensor | None:
        """[S, T, V] under the first parameters; None at beta 0."""
        sampled: Sampled = rollout.source
        if self._reference is None:
            return None
        if isinstance(self._reference, Tensor):
            return self._reference[list(sampled.prompts[start:stop])]
        ids = rollout.action_ids_BT
        with torch.no_grad():
            blocks = [
                answer_logits(self._reference, self.task, sampled.prompts[first:last], ids[first:last])
                for first, last in self._blocks(start, stop)
            ]
        return torch.cat(blocks)

    def target_probability(self) -> float:
        """Mean over prompts of the probability of the target, float64. Needs a task with targets."""
        assert self.task.targets is not None
        logits = self._prompt_logits()[:, 0].double()
        chances = torch.softmax(logits, dim=-1)
        return float(chances[torch.arange(len(chances)), list(self.task.targets)].mean())

    def _prompt_logits(self) -> Tensor:
        """[prompts, 1, V]: what the first token of an answer is drawn from, each prompt on its own."""
        first = torch.zeros(1, self.task.max_new_tokens, dtype=torch.int64, device=self.device)
        with torch.no_grad():
            rows = [answer_logits(self.model, self.task, [each], first) for each in range(len(self.task.prompts))]
        return torch.cat(rows)[:, :1]

    def _make_reference(self) -> Any:
        """Answers of one token need only the prompts' first logits; longer ones a copy of the model."""
        if self.task.max_new_tokens == 1:
            return self._prompt_logits()
        return copy.deepcopy(self.model).requires_grad_(False)

    def _vocabulary(self) -> int:
        return int(self._prompt_logits().shape[-1])

    def _blocks(self, start: int, stop: int) -> list[tuple[int, int]]:
        return [(each, min(each + self.block, stop)) for each in range(start, stop, self.block)]
