"""Micro-batches: parts of a batch give the bits of the whole, and mistakes in their use are told."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from grpo_contract import (
    ContractError,
    GRPOLossContract,
    GRPOVerifyError,
    InputError,
    Problem,
    ShardingSpec,
)
from loss_ops.agreement import agree
from loss_ops.checked_program import Checks, checked_program
from loss_ops.collect_parts import collect
from loss_ops.distributed_loss import DistributedGRPOLossOp
from loss_ops.fixed_batch import FixedBatch, Part, fix_batch, part_sharding, rank_call
from loss_ops.gather import Program
from loss_ops.loss_call import LossCall
from loss_ops.loss_program import gradient_of
from loss_ops.real_ranks import RealRanks
from loss_ops.result import GRPOLossResult
from loss_ops.virtual_ranks import run_virtual

SEQUENCES, LENGTH, COLUMNS = 8, 16, 37
NORMALIZERS = [
    {"token_normalizer": "global_active_tokens"},
    {"token_normalizer": "per_sequence_then_mean"},
    {"token_normalizer": "per_sequence_then_mean", "sequence_denominator": "all"},
    {"token_normalizer": "fixed_constant", "fixed_constant": 50.0},
    {"token_normalizer": "length_power", "alpha": 0.5},
]
OP = DistributedGRPOLossOp()
Batch = dict[str, Tensor]


def drawn(seed: int = 0) -> Batch:
    """A ragged batch whose last sequence is empty."""
    draw = torch.Generator().manual_seed(seed)
    mask = torch.arange(LENGTH)[None] < torch.randint(1, LENGTH + 1, (SEQUENCES, 1), generator=draw)
    mask[-1] = False
    return {
        "policy": torch.randn(SEQUENCES, LENGTH, COLUMNS, generator=draw),
        "reference": torch.randn(SEQUENCES, LENGTH, COLUMNS, generator=draw),
        "ids": torch.randint(0, COLUMNS, (SEQUENCES, LENGTH), generator=draw),
        "old": -torch.rand(SEQUENCES, LENGTH, generator=draw) * 6,
        "rewards": torch.rand(SEQUENCES, generator=draw),
        "mask": mask,
    }


def contract_of(**fields: object) -> GRPOLossContract:
    """Two groups of four."""
    return GRPOLossContract.for_batch(
        num_sequences=SEQUENCES, padded_seq_len=LENGTH, vocab_size=COLUMNS, samples_per_prompt=4, **fields
    )


def fixed_of(batch: Batch, contract: GRPOLossContract, **changes: Tensor) -> FixedBatch:
    held = batch | changes
    alone = ShardingSpec.even(1, 1, contract=contract)
    call = rank_call(
        held["ids"], held["old"], held["rewards"], contract=contract, sharding=alone, completion_mask=held["mask"]
    )
    return RealRanks().run(fix_batch(call))


def in_parts(fixed: FixedBatch, batch: Batch, cuts: Sequence[int]) -> tuple[list[Part], Tensor]:
    """The parts between the cuts, and their gradients joined."""
    parts, gradients = [], []
    for start, stop in pairwise(cuts):
        leaf = batch["policy"][start:stop].clone().requires_grad_()
        part = fixed.apply(OP, leaf, start=start, ref_local_logits=batch["reference"][start:stop])
        part.result.loss.backward()
        parts.append(part)
        gradients.append(leaf.grad)
    return parts, torch.cat(gradients)  # type: ignore[arg-type]


def whole(batch: Batch, contract: GRPOLossContract) -> tuple[GRPOLossResult, Tensor]:
    leaf = batch["policy"].clone().requires_grad_()
    result = OP.apply(
        leaf, batch["ids"], batch["old"], batch["rewards"], contract=contract, completion_mask=batch["mask"],
        ref_local_logits=batch["reference"],
    )  # fmt: skip
    result.loss.backward()
    assert leaf.grad is not None
    return result, leaf.grad


@pytest.mark.parametrize("normalizer", NORMALIZERS)
@pytest.mark.parametrize("cuts", [(0, 8), (0, 4, 8), (0, 1, 2, 3, 4, 5, 6, 7, 8), (0, 3, 5, 8)])
def test_parts_give_the_bits_of_the_whole(normalizer: dict[str, object], cuts: tuple[int, ...]) -> None:
    batch, contract = drawn(), contract_of(**normalizer)
    expected, gradient = whole(batch, contract)
    fixed = fixed_of(batch, contract)
    parts, joined = in_parts(fixed, batch, cuts)
    got = RealRanks().run(collect(fixed, parts))
    assert torch.equal(joined.view(torch.int32), gradient.view(torch.int32))
    for name in ("loss", "policy_loss", "kl", "per_sequence_policy", "per_sequence_kl", "advantages"):
        assert torch.equal(getattr(got, name).detach(), getattr(expected, name).detach()), name
    assert got.clip_counts.as_dict() == expected.clip_counts.as_dict()
    assert got.per_sequence_active_tokens.tolist() == expected.per_sequence_active_tokens.tolist()


def test_losses_of_parts_add_up() -> None:
    batch, contract = drawn(), contract_of()
    parts, _ = in_parts(fixed_of(batch, contract), batch, (0, 2, 8))
    total = sum(float(part.result.loss.detach()) for part in parts)
    assert total == pytest.approx(float(whole(batch, contract)[0].loss.detach()), abs=1e-6)


def test_parts_of_two_ranks_are_the_whole() -> None:
    batch, contract = drawn(), contract_of()
    expected, gradient = whole(batch, contract)
    fixed = run_virtual({(0, rank): fix_batch(call_of_two(batch, contract, rank)) for rank in range(2)})
    found = [in_parts(fixed[0, rank], batch, (4 * rank, 4 * rank + 1, 4 * rank + 4)) for rank in range(2)]
    results = run_virtual({(0, rank): collect(fixed[0, rank], found[rank][0]) for rank in range(2)})
    assert torch.equal(torch.cat([each[1] for each in found]), gradient)
    assert all(torch.equal(each.loss, expected.loss.detach()) for each in results.values())


def test_a_part_of_a_sharded_vocabulary_is_the_whole() -> None:
    batch, contract = drawn(), contract_of()
    expected, gradient = whole(batch, contract)
    places = [ShardingSpec.even(2, 1, rank=rank, contract=contract) for rank in range(2)]
    calls = [
        rank_call(
            batch["ids"], batch["old"], batch["rewards"], contract=contract, sharding=place,
            completion_mask=batch["mask"], group_sizes=(2, None),
        )
        for place in places
    ]  # fmt: skip
    fixed = run_virtual({(rank, 0): fix_batch(call) for rank, call in enumerate(calls)})
    programs = {}
    for rank, place in enumerate(places):
        columns = slice(*place.vocab_shard)
        part = fixed[rank, 0].part_call(batch["policy"][2:5, :, columns], 2, batch["reference"][2:5, :, columns])
        program = checked_program(replace(part, group_sizes=(2, 3)), OP.stages, Checks(preflight=False))
        programs[rank, 0] = fixed[rank, 0].answering(program, part.sharding)
    outcomes = run_virtual(programs)
    got = torch.cat([gradient_of(*outcomes[rank, 0], OP.stages).view(3, LENGTH, -1) for rank in range(2)], dim=2)
    assert torch.equal(got, gradient[2:5])
    for _, state in outcomes.values():
        assert torch.equal(state.totals_B.policy[2:5], expected.per_sequence_policy[2:5])


def test_a_part_normalized_by_itself_would_be_another_loss() -> None:
    batch, contract = drawn(), contract_of()
    _, right = in_parts(fixed_of(batch, contract), batch, (0, 4, 8))
    halves = []
    for start in (0, 4):
        rows = {name: tensor[start : start + 4] for name, tensor in batch.items()}
        half = GRPOLossContract.for_batch(
            num_sequences=4, padded_seq_len=LENGTH, vocab_size=COLUMNS, samples_per_prompt=4
        )
        halves.append(whole(rows, half)[1] / 2)
    assert float((torch.cat(halves) - right).abs().max()) > 1e-4


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"rewards": torch.tensor([0, 1, 2, torch.nan, 4, 5, 6, 7])},
            r"rewards at \[3\]: expected a finite number",
        ),
        ({"rewards": torch.zeros(7)}, r"rewards: expected shape \[8\], got shape \[7\]"),
        (
            {"mask": torch.zeros(SEQUENCES, LENGTH)},
            "completion_mask: expected dtype|completion_mask: expected bool",
        ),
        ({"mask": torch.zeros(SEQUENCES, LENGTH, dtype=torch.bool)}, "expected an active token in the batch"),
    ],
)
def test_what_is_wrong_is_told_before_any_part(changes: dict[str, Tensor], message: str) -> None:
    with pytest.raises(InputError, match=message):
        fixed_of(drawn(), contract_of(), **changes)


def test_a_part_must_lie_on_its_rank() -> None:
    batch = drawn()
    fixed = fixed_of(batch, contract_of())
    with pytest.raises(InputError, match=r"start: expected sequences of this rank, \[0, 8\), got \[6, 9\)"):
        fixed.apply(OP, batch["policy"][:3], start=6, ref_local_logits=batch["reference"][:3])


@pytest.mark.parametrize("cuts", [(0, 4), (2, 8)])
def test_parts_must_cover_the_rank(cuts: tuple[int, ...]) -> None:
    batch = drawn()
    fixed = fixed_of(batch, contract_of())
    parts, _ = in_parts(fixed, batch, cuts)
    with pytest.raises(InputError, match=r"parts: expected parts that cover \[0, 8\) once"):
        RealRanks().run(collect(fixed, parts))


def fixed_of_two() -> tuple[Batch, dict[tuple[int, int], FixedBatch]]:
    batch, contract = drawn(), contract_of()
    return batch, run_virtual({(0, rank): fix_batch(call_of_two(batch, contract, rank)) for rank in range(2)})


def call_of_two(batch: Batch, contract: GRPOLossContract, rank: int) -> LossCall:
    """The call of one of two DP ranks."""
    place = ShardingSpec.even(1, 2, rank=rank, contract=contract)
    rows = slice(*place.sequence_shard)
    return rank_call(
        batch["ids"][rows], batch["old"][rows], batch["rewards"][rows], contract=contract, sharding=place,
        completion_mask=batch["mask"][rows], group_sizes=(None, 2),
    )  # fmt: skip


def computed(fixed: FixedBatch, batch: Batch, fault: Exception | None = None) -> Iterator[Part]:
    """The rank's parts, two sequences each, computed when they are asked for; `fault` replaces the second."""
    for start in range(*fixed.rows, 2):
        if fault is not None and start > fixed.rows[0]:
            raise fault
        yield in_parts(fixed, batch, (start, start + 2))[0][0]


def test_parts_may_be_computed_when_they_are_asked_for() -> None:
    batch, fixed = fixed_of_two()
    results = run_virtual({place: collect(each, computed(each, batch)) for place, each in fixed.items()})
    expected = whole(batch, contract_of())[0].loss.detach()
    assert all(torch.equal(each.loss, expected) for each in results.values())


FAULTS = [
    (InputError(Problem("input.x", "logits", "finite", "nan")), InputError, "logits: expected finite, got nan"),
    (MemoryError("no room"), GRPOVerifyError, "part of the batch: expected no error, got MemoryError: no room"),
    (ContractError("told in words"), ContractError, "told in words"),
]


@pytest.mark.parametrize(("fault", "kind", "message"), FAULTS)
def test_what_one_rank_meets_is_raised_on_all(fault: Exception, kind: type[Exception], message: str) -> None:
    """Virtual ranks say so where some raise and others wait."""
    batch, fixed = fixed_of_two()
    for guilty in range(2):
        programs = {
            (tp, dp): collect(each, computed(each, batch, fault if dp == guilty else None))
            for (tp, dp), each in fixed.items()
        }
        with pytest.raises(kind, match=message):
            run_virtual(programs)


def test_what_one_rank_of_a_mesh_meets_is_raised_on_all() -> None:
    error = InputError(Problem("input.part", "part", "a part", "none"))
    device = torch.device("cpu")

    def rank(place: tuple[int, int]) -> Program[str]:
        try:
            yield from agree(error if place == (1, 0) else None, (2, 3), device)
        except InputError as found:
            return str(found)
        return "nothing"

    outcomes = run_virtual({(t, d): rank((t, d)) for t in range(2) for d in range(3)})
    assert set(outcomes.values()) == {str(error)}


def test_a_rank_alone_raises_what_it_met() -> None:
    batch = drawn()
    fixed = fixed_of(batch, contract_of())
    with pytest.raises(MemoryError, match="no room"):
        RealRanks().run(collect(fixed, computed(fixed, batch, MemoryError("no room"))))


def test_a_rank_without_its_parts_is_told_on_all() -> None:
    batch, fixed = fixed_of_two()
    parts = {place: list(computed(each, batch)) for place, each in fixed.items()}
    parts[0, 1].pop()
    with pytest.raises(InputError, match=r"parts: expected parts that cover \[4, 8\) once, got \[4, 6\)"):
        run_virtual({place: collect(each, parts[place]) for place, each in fixed.items()})


def _real_rank(rank: int, store: str, told: Connection) -> None:
    shared = dist.FileStore(store, 2)  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=shared, rank=rank, world_size=2, timeout=timedelta(seconds=60))
    batch, driver = drawn(), RealRanks(dp_group=dist.group.WORLD)
    fixed = driver.run(fix_batch(call_of_two(batch, contract_of(), rank)))
    try:
        driver.run(collect(fixed, computed(fixed, batch, MemoryError("no room") if rank else None)))
    except GRPOVerifyError as error:
        told.send(str(error))
    dist.destroy_process_group()


def test_real_ranks_do_not_wait_for_one_that_failed(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    pipes = [context.Pipe(duplex=False) for _ in range(2)]
    ranks = [
        context.Process(target=_real_rank, args=(rank, str(tmp_path / "store"), pipes[rank][1]), daemon=True)
        for rank in range(2)
    ]
    for each in ranks:
        each.start()
    try:
        assert all(receiver.poll(60) for receiver, _ in pipes)
        first, second = (receiver.recv() for receiver, _ in pipes)
        assert first == second
        assert "MemoryError: no room" in first
    finally:
        for each in ranks:
            each.kill()
            each.join()


def test_the_place_of_a_part_is_one_object() -> None:
    alone = ShardingSpec.even(1, 1, contract=contract_of())
    place = part_sharding(alone, 2, 4)
    assert place is part_sharding(alone, 2, 4)
    assert place.sequence_shard_bounds == ((0, 2), (2, 4), (4, 8))
    assert place.sequence_shard == (2, 4)
