"""Every pattern is found on a fault planted for it, alone and in seeded mixtures of faults and sizes."""

import random

import pytest

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
