"""Loss terms alone: atomics per token, one set of atomics a block, and a deterministic two-stage reduction.

    python -m benchmarks.loss_terms [--configs "1024;4096"] [--json]

A config is a number of sequences of 1024 slots: 1,048,576 and 4,194,304 tokens. Log-probabilities are given.
Ragged: sequence s has max(1, T // 2 + (37 s) mod max(1, T // 5 + 1)) tokens. The floor reads policy, reference
and old log-probabilities and the mask once.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from benchmarks.report import Report, options_for
from benchmarks.timing import measure
from loss_ops.triton_math import kl_terms, policy_terms

LENGTH = 1024
BLOCK = 1024


@triton.jit
def terms(logp_ptr, ref_ptr, old_ptr, active_ptr, advantage_ptr, slot, LENGTH: tl.constexpr):
    """(policy term, KL, active) of a block of slots."""
    active = tl.load(active_ptr + slot) != 0
    logp = tl.load(logp_ptr + slot)
    advantage = tl.load(advantage_ptr + slot // LENGTH)
    _, policy, _, _, _ = policy_terms(logp, tl.load(old_ptr + slot), advantage, active, 0.8, 1.2)
    kl, _ = kl_terms(logp, tl.load(ref_ptr + slot), active, "k3")
    return tl.where(active, policy, 0.0), tl.where(active, kl, 0.0), active.to(tl.float32)


@triton.jit
def atomics_per_token(
    logp_ptr, ref_ptr, old_ptr, active_ptr, advantage_ptr, out_ptr, LENGTH: tl.constexpr, B: tl.constexpr
):
    """Three atomic additions for every active token."""
    slot = tl.program_id(0) * B + tl.arange(0, B)
    policy, kl, active = terms(logp_ptr, ref_ptr, old_ptr, active_ptr, advantage_ptr, slot, LENGTH)
    here = tl.zeros([B], tl.int32)
    tl.atomic_add(out_ptr + here, policy, mask=active != 0)
    tl.atomic_add(out_ptr + 1 + here, kl, mask=active != 0)
    tl.atomic_add(out_ptr + 2 + here, active, mask=active != 0)


@triton.jit
def atomics_per_block(
    logp_ptr, ref_ptr, old_ptr, active_ptr, advantage_ptr, out_ptr, LENGTH: tl.constexpr, B: tl.constexpr
):
    """Three atomic additions a block; their order is the device's own."""
    slot = tl.program_id(0) * B + tl.arange(0, B)
    policy, kl, active = terms(logp_ptr, ref_ptr, old_ptr, active_ptr, advantage_ptr, slot, LENGTH)
    tl.atomic_add(out_ptr, tl.sum(policy, 0))
    tl.atomic_add(out_ptr + 1, tl.sum(kl, 0))
    tl.atomic_add(out_ptr + 2, tl.sum(active, 0))


@triton.jit
def sequence_stage(
    logp_ptr, ref_ptr, old_ptr, active_ptr, advantage_ptr, out_ptr, LENGTH: tl.constexpr, B: tl.constexpr
):
    """Totals of one sequence, in a tree fixed by its length."""
    sequence = tl.program_id(0)
    slot = sequence * LENGTH + tl.arange(0, B)
    policy, kl, active = terms(logp_ptr, ref_ptr, old_ptr, active_ptr, advantage_ptr, slot, LENGTH)
    tl.store(out_ptr + sequence * 3, tl.sum(policy, 0))
    tl.store(out_ptr + sequence * 3 + 1, tl.sum(kl, 0))
    tl.store(out_ptr + sequence * 3 + 2, tl.sum(active, 0))


@triton.jit
def batch_stage(totals_ptr, out_ptr, sequences, B: tl.constexpr):
    """Totals of the batch, one program, sequences in order."""
    lane = tl.arange(0, B)
    for column in tl.static_range(3):
        total = tl.zeros([B], tl.float32)
        for first in range(0, sequences, B):
            total += tl.load(totals_ptr + (first + lane) * 3 + column, mask=first + lane < sequences, other=0.0)
        tl.store(out_ptr + column, tl.sum(total, 0))


def main() -> None:
    """Check, then time, both sizes, full and ragged."""
    options = options_for(__doc__, "1024;4096")
    report = Report.start("loss_terms", options)
    for (sequences,) in options.configs:
        for ragged in (False, True):
            tensors = random_terms(sequences, ragged=ragged)
            tokens = int(tensors[3].sum())
            mask = "ragged" if ragged else "full"
            report.section(f"{sequences * LENGTH:,} slots", mask=mask, tokens=f"{tokens:,}")
            out = torch.zeros(3, device="cuda")
            cases = cases_of(tensors, out, sequences)
            check(cases, tensors, out)
            for name, timing in measure(cases, repeats=options.repeats).items():
                report.row(name, timing, sequences * LENGTH * 13)
    report.finish()


def random_terms(sequences: int, *, ragged: bool) -> tuple[Tensor, ...]:
    """logp, ref_logp, old_logp, mask [S, T] and advantages [S]."""
    torch.manual_seed(0)
    logp = torch.randn(sequences, LENGTH, device="cuda") - 3
    ref, old = logp + torch.randn_like(logp) * 0.2, logp + torch.randn_like(logp) * 0.2
    lengths = torch.full((sequences,), LENGTH, device="cuda")
    if ragged:
        number = torch.arange(sequences, device="cuda")
        lengths = (LENGTH // 2 + 37 * number % max(1, LENGTH // 5 + 1)).clamp_min(1)
    mask = torch.arange(LENGTH, device="cuda") < lengths[:, None]
    return logp, ref, old, mask, torch.randn(sequences, device="cuda")


def cases_of(tensors: tuple[Tensor, ...], out: Tensor, sequences: int):  # type: ignore[no-untyped-def]
    """The three reductions; the reset of the accumulator counts where one is needed."""
    totals = torch.empty(sequences, 3, device="cuda")

    def atomic(kernel):  # type: ignore[no-untyped-def]
        out.zero_()
        kernel[(sequences,)](*tensors, out, LENGTH, BLOCK)

    def two_stages() -> None:
        sequence_stage[(sequences,)](*tensors, totals, LENGTH, BLOCK)
        batch_stage[(1,)](totals, out, sequences, BLOCK)

    return {
        "atomics per token": lambda: atomic(atomics_per_token),
        "atomics per block": lambda: atomic(atomics_per_block),
        "deterministic, two stages": two_stages,
    }


def check(cases, tensors: tuple[Tensor, ...], out: Tensor) -> None:  # type: ignore[no-untyped-def]
    """Each case against float64; raises where one is wrong."""
    logp, ref, old, mask, advantage = tensors
    ratio, wide = (logp - old).double().exp(), advantage[:, None].double()
    policy = -torch.minimum(ratio * wide, ratio.clamp(0.8, 1.2) * wide)
    d = (ref - logp).double()
    want = torch.stack([(policy * mask).sum(), ((d.expm1() - d) * mask).sum(), mask.sum().double()])
    for name, case in cases.items():
        out.fill_(torch.nan)
        case()
        error = ((out.double() - want).abs() / (want.abs() + 1)).max().item()
        if not error < 5e-3:
            raise SystemExit(f"{name}: off by {error:.1e}: {out.tolist()} against {want.tolist()}")


if __name__ == "__main__":
    main()
