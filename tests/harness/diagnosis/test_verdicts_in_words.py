"""Every pattern is found on a fault planted for it, alone and in seeded mixtures of faults and sizes."""

import random
from collections.abc import Callable

import pytest
import torch

from harness.comparing.comparison import compare
from harness.diagnosis.evidence import gather_evidence
from harness.diagnosis.verdict import diagnose
from harness.verify import verify_loss
from loss_ops.batch import GlobalBatch
from loss_ops.virtual_layout import run_layout
from reports import Report
from support.planted_drifts import PLANTED, batch_for, planted_case

ROUNDING = "rounding only"


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_is_called_by_its_pattern(name: str) -> None:
    planted = PLANTED[name]
    found = planted_case([planted.plant], batch_for([name]), (2, 3)).diagnosis
    assert found is not None
    assert found.pattern == planted.pattern, found.words


def mixture(seed: int) -> tuple[list[str], dict, tuple[int, int], dict]:
    """Faults, sizes and layout of one mixture: a fault, and in half of them another order of sums with it."""
    draw = random.Random(seed)
    sequences = draw.choice((5, 6, 9))
    spec = {
        "num_sequences": sequences,
        "padded_seq_len": draw.choice((5, 8, 33, 100)),
        "group_boundaries": draw.choice(((0, 2, sequences), (0, 3, sequences))),
        "real_vocab_size": draw.choice((21, 24)),
    }
    if draw.random() < 0.5:
        spec |= {"real_vocab_size": 250, "padded_vocab_size": 256, "num_vocab_tiles": 16}
    layout = draw.choice(((2, 2), (2, 3), (3, 2), (4, 2)))
    name = draw.choice([each for each in PLANTED if each != "another order"] + ["another order"] * 4)
    names = ["another order", name] if draw.random() < 0.5 else [name]
    return list(dict.fromkeys(names)), spec, layout, {"seed": seed}


MIXTURES = range(30)


def test_mixtures_are_told_apart_and_none_is_called_rounding_that_is_not() -> None:
    wrong = []
    for seed in MIXTURES:
        names, spec, layout, batch = mixture(seed)
        expected = {PLANTED[each].pattern for each in names} - {ROUNDING} or {ROUNDING}
        found = planted_case([PLANTED[each].plant for each in names], batch_for(names, **batch, **spec), layout)
        pattern = found.diagnosis.pattern if found.diagnosis else "match"
        assert pattern != ROUNDING or expected == {ROUNDING}, (seed, names)
        if pattern not in expected:
            wrong.append((seed, names, layout, pattern, found.diagnosis and found.diagnosis.words))
    assert len(wrong) <= 0.05 * len(MIXTURES), wrong


@pytest.mark.parametrize(
    ("name", "layout", "words"),
    [
        ("gradient times 2", (2, 2), "dp size 2"),
        ("gradient times 2", (2, 3), "tp size 2"),
        ("gradient times 1 / 3", (2, 3), "averaged over DP"),
        ("gradient times 2", (1, 3), "accumulation: 2 steps"),
        ("whole vocabulary as a shard", (2, 1), "log of tp size 2: the whole vocabulary fed as a shard"),
        ("two sequences swapped", (1, 2), "0 and 5 swapped"),
        ("last rank's shard", (2, 2), "only rank tp=1 dp=1's shard"),
        ("masked slots", (1, 2), "only masked slots in grad_policy_logits"),
        ("a NaN", (1, 2), "non-finite, first at ["),
        (
            "advantages over a rank's own rewards",
            (1, 2),
            "each rank's own part of a group in advantages; first stage to differ: advantages (likely each rank "
            "normalizes over the rewards that it holds)",
        ),
        (
            "sample std",
            (1, 2),
            "is expected): factor 0.707107 in groups of 2, 0.866025 in groups of 4",
        ),
    ],
)
def test_the_sentence_names_cause_and_place(name: str, layout: tuple[int, int], words: str) -> None:
    found = planted_case([PLANTED[name].plant], batch_for([name]), layout).diagnosis
    assert found is not None
    assert words in found.words


def test_another_shape_is_said() -> None:
    drift = compare("advantages", torch.zeros(2), torch.zeros(3))
    found = diagnose(gather_evidence([((0, 0), [drift])]), (1, 1))
    assert found is not None
    assert found.words.startswith("no known pattern: expected [2] float32, got [3] float32 in advantages")


def test_histogram_shares_and_heat_map_reach_the_report() -> None:
    case = planted_case([PLANTED["last rank's shard"].plant], batch_for([]), (2, 3))
    (quantity,) = case.drifted
    assert sum(quantity.ulp_histogram) == quantity.mismatched
    assert quantity.shares is not None
    assert [(each.tp, each.dp, each.mismatched > 0) for each in quantity.shares.rank] == [
        (t, d, (t, d) == (1, 2)) for d in range(3) for t in range(2)
    ]
    for axis in ("sequence", "token", "tile"):
        assert sum(each.mismatched for each in getattr(quantity.shares, axis)) == quantity.mismatched
    assert quantity.heat_map is not None
    assert sum(map(sum, quantity.heat_map.rows)) == quantity.mismatched
    assert Report.from_json(Report.assemble(cases=[case]).to_json()).cases[0] == case


def one_is_wrong(wrong: torch.Tensor, _dp: int) -> None:
    wrong[5] += 0.37


def the_last_rank_keeps_zeros(wrong: torch.Tensor, dp: int) -> None:
    wrong[-(len(wrong) // dp) :] = 0


@pytest.mark.parametrize("dp", [2, 4, 8])
@pytest.mark.parametrize("spoil", [one_is_wrong, the_last_rank_keeps_zeros])
def test_other_wrong_advantages_are_not_called_a_ranks_own(
    spoil: Callable[[torch.Tensor, int], None], dp: int
) -> None:
    def op(batch: GlobalBatch, tp: int, dp: int) -> dict[str, torch.Tensor]:
        found = dict(run_layout(batch, tp, dp).quantities())
        if dp > 1:
            found["advantages"] = found["advantages"].clone()
            spoil(found["advantages"], dp)
        return found

    (case,) = (each for each in verify_loss(op, "seed", [(1, dp)], repeat=1).cases if each.layout.dp > 1)
    assert case.diagnosis is not None
    assert case.diagnosis.pattern in ("only some sequences", "zero where a value is expected")


def said(ranks: list[dict[str, tuple[float | list[float], float | list[float]]]]) -> str:
    """The sentence on (expected, got) of each quantity, a mapping for each DP rank; vectors are [B]."""
    seen = []
    for dp, held in enumerate(ranks):
        drifts = [compare(name, torch.tensor(wanted), torch.tensor(got)) for name, (wanted, got) in held.items()]
        seen.append(((0, dp), drifts))
    found = diagnose(gather_evidence(seen), (1, len(ranks)))
    assert found is not None
    return found.words


@pytest.mark.parametrize(
    ("values", "cause"),
    [
        ((0.75, -0.5), "each rank keeps its own part of a sum: not summed over DP"),
        ((0.25, 0.26), "each rank keeps its own mean: not averaged over DP"),
        ((3.0, 9.0), "not reduced over DP, or each rank divides by its own count, of tokens or of sequences"),
    ],
)
def test_ranks_that_hold_values_of_their_own_are_told(values: tuple[float, float], cause: str) -> None:
    expected = 0.255 if values[0] == 0.25 else 0.25
    words = said([{"loss": (expected, value)} for value in values])
    assert words.startswith(
        f"ranks hold different values: {values[0]:.6g} on dp 0, {values[1]:.6g} on dp 1 in loss"
    )
    assert words.endswith(f"(likely {cause})")
    assert "ranks hold" not in said([{"loss": (expected, values[0])}] * 2)


def test_a_run_that_does_not_repeat_says_so_first() -> None:
    words = said([{"loss": (1.0, 1.0), "loss (run 2)": (1.0, 1.5)}])
    assert words.startswith("does not repeat: runs of one layout differ in loss; ")


def test_a_rounding_names_no_stage_of_what_is_more_than_one() -> None:
    up = 1.0 + 2.0**-23
    terms = {"per_sequence_kl": ([1.0, 2.0], [up, 2.0]), "advantages": ([1.0, 2.0], [1.0, 2.0])}
    words = said([terms | {"kl": (1.0, 2.0), "per_sequence_active_tokens": ([1.0, 2.0], [1.0, 2.0])}] * 2)
    assert (
        "in kl; first stage to differ: kl, while per-sequence kl and active tokens agree but for rounding" in words
    )


@pytest.mark.parametrize(("loss", "is_named"), [(1.0, False), (2.0, True)])
def test_a_divisor_is_blamed_only_where_the_loss_shows_it_too(loss: float, is_named: bool) -> None:
    held = {"loss": (1.0, loss), "grad_policy_logits": ([[[1.0, 3.0]]], [[[2.0, 6.0]]])}
    words = said([held] * 2)
    assert ("divided by a rank's own token count" in words) == is_named
    assert "summed over DP once too often" in words
