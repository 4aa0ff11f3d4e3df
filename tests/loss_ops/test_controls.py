"""Planted faults: harmless at 1x1, seen where they say, and only by what they name."""

from dataclasses import replace

import pytest
import torch

from grpo_contract import InputError, PreflightError, ShardingSpec
from harness.settings.batch_spec import CONTROL
from loss_ops.batch import GlobalBatch
from loss_ops.checked_program import Checks, checked_program
from loss_ops.controls import FAULTY_STAGES, contract_on_rank, faulty_op
from loss_ops.distributed_loss import DistributedGRPOLossOp
from loss_ops.faults import FAULTS, Fault
from loss_ops.quantities import GRADIENT, REPLICATED
from loss_ops.virtual_layout import VirtualOutcome, layout_shardings, run_layout
from loss_ops.virtual_ranks import run_virtual
from support.batches import drawn
from support.bits import differing

SEEDS = 24
LAYOUT_FAULTS = [fault for fault in FAULTS if fault.kind == "layout"]
STAGED = [fault for fault in FAULTS if fault.kind != "disagreement"]


def names(fault: Fault) -> str:
    return fault.name


def moved(expected: VirtualOutcome, got: VirtualOutcome) -> set[str]:
    """Quantities that differ on some rank."""
    baseline = expected.quantities()
    return {name for place in got.results for name in differing(baseline, got.quantities(place))}


def outcomes(fault: Fault, batch: GlobalBatch) -> tuple[VirtualOutcome, VirtualOutcome]:
    """What the harness compares: the faulty op at 1x1, or the good one for arithmetic; and at the layout."""
    op = faulty_op(fault.name)
    baseline = run_layout(batch, 1, 1, op=op if fault.kind == "layout" else None)
    return baseline, run_layout(batch, *fault.layout, op=op)


def test_the_catalogue_is_sound() -> None:
    assert len({fault.name for fault in FAULTS}) == len(FAULTS) > 12
    assert FAULTY_STAGES.keys() == {fault.name for fault in STAGED}
    for fault in STAGED:
        assert set(fault.quantities) <= {*REPLICATED, GRADIENT}
        assert fault.quantities
    assert all(fault.layout != (1, 1) for fault in LAYOUT_FAULTS)


@pytest.mark.parametrize("fault", LAYOUT_FAULTS, ids=names)
def test_a_layout_fault_is_the_good_op_at_1x1(fault: Fault) -> None:
    for seed in range(4):
        batch = drawn(CONTROL, seed)
        good, bad = run_layout(batch, 1, 1), run_layout(batch, 1, 1, op=faulty_op(fault.name))
        assert moved(good, bad) == set()


@pytest.mark.parametrize("fault", STAGED, ids=names)
def test_a_fault_is_seen_where_it_says(fault: Fault) -> None:
    seeds = [
        seed for seed in range(SEEDS) if moved(*outcomes(fault, drawn(CONTROL, seed))) & set(fault.quantities)
    ]
    assert seeds, "no seed shows it"
    # A run looks at so many seeds; a fault that needs luck must still find it there.
    assert len(seeds) >= SEEDS / 4


@pytest.mark.parametrize(
    ("name", "unmoved"),
    [
        ("gradient_zero_off_owner", set(REPLICATED)),
        ("gradient_scaled_by_dp", set(REPLICATED)),
        ("sequence_totals_all_reduced", {"per_sequence_policy", "per_sequence_kl", "advantages", GRADIENT}),
        ("token_sum_regrouped_per_rank", {"advantages", GRADIENT, "clip_counts"}),
        ("rank_local_normalizer", {"per_sequence_policy", "per_sequence_kl", "advantages"}),
        ("bf16_token_sum", {"advantages", GRADIENT, "clip_counts"}),
    ],
)
def test_a_fault_moves_nothing_else(name: str, unmoved: set[str]) -> None:
    fault = next(fault for fault in FAULTS if fault.name == name)
    for seed in range(6):
        assert moved(*outcomes(fault, drawn(CONTROL, seed))) & unmoved == set()


def test_the_good_op_moves_nothing_on_the_control_batch() -> None:
    for seed in range(4):
        batch = drawn(CONTROL, seed)
        baseline = run_layout(batch, 1, 1)
        for layout in sorted({fault.layout for fault in FAULTS}):
            assert moved(baseline, run_layout(batch, *layout)) == set()


def test_the_scaled_gradient_is_exactly_twice() -> None:
    batch = drawn(CONTROL, 0)
    fault = next(fault for fault in FAULTS if fault.name == "gradient_scaled_by_dp")
    good, bad = outcomes(fault, batch)
    ratio = bad.gradient[good.gradient != 0] / good.gradient[good.gradient != 0]
    assert (ratio.min().item(), ratio.max().item()) == (2.0, 2.0)
    assert fault.pattern_at((1, 2)) == "constant factor 2"


@pytest.mark.parametrize(
    ("axis", "layout"),
    [("tp", (2, 1)), ("tp", (4, 1)), ("tp", (2, 2)), ("dp", (1, 2)), ("dp", (1, 4)), ("dp", (2, 2))],
)
def test_a_disagreement_is_refused(axis: str, layout: tuple[int, int]) -> None:
    batch = drawn(CONTROL, 0)
    name = f"beta_differs_on_one_{axis}_rank"
    programs = {}
    for each in layout_shardings(batch, *layout):
        contract = contract_on_rank(name, batch.contract, each)
        call = replace(batch.shard(each), contract=contract, group_sizes=layout)
        programs[each.tp_rank, each.dp_rank] = checked_program(call, faulty_op(name).stages, Checks())
    with pytest.raises(PreflightError) as caught:
        run_virtual(programs)
    tp, dp = layout
    odd = [(tp - 1, d) for d in range(dp)] if axis == "tp" else [(t, dp - 1) for t in range(tp)]
    assert {problem.where for problem in caught.value.problems} == {
        f"objective.beta on rank (tp {t}, dp {d})" for t, d in odd
    }


@pytest.mark.parametrize("axis", ["tp", "dp"])
def test_a_disagreement_needs_a_second_rank(axis: str) -> None:
    batch = drawn(CONTROL, 0)
    alone = ShardingSpec.even(1, 1, contract=batch.contract)
    assert contract_on_rank(f"beta_differs_on_one_{axis}_rank", batch.contract, alone) is batch.contract


@pytest.mark.parametrize("fault", FAULTS, ids=names)
def test_a_faulty_op_says_what_it_is(fault: Fault) -> None:
    good = DistributedGRPOLossOp()
    assert faulty_op(fault.name, good).backend == f"native+{fault.name}"
    assert (faulty_op(fault.name, good).stages != good.stages) is (fault.kind != "disagreement")


def test_a_fault_that_is_none_is_refused() -> None:
    with pytest.raises(InputError, match=r"fault: expected one of .*bf16_token_sum.*, got 'bf16_tokensum'"):
        faulty_op("bf16_tokensum")


def test_the_control_batch_has_power() -> None:
    batch = drawn(CONTROL, 0)
    assert batch.completion_mask.all()
    quantities = run_layout(batch, 1, 1).quantities()
    assert all(
        (value != 0).all() for name, value in quantities.items() if name != "clip_counts" and value.dim() < 3
    )
    assert (quantities["clip_counts"] > 0).all()
    real = quantities[GRADIENT][..., : CONTROL.real_vocab_size]
    assert torch.count_nonzero(real) > 0.8 * real.numel()
