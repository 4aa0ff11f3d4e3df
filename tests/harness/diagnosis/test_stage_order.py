"""The first stage whose inputs agree and whose output differs."""

import pytest

from harness.diagnosis.stage_order import INPUTS, NAMES, first_stage, in_order

EVERYTHING = dict.fromkeys(INPUTS, False)


def test_every_stage_has_a_name_and_stands_after_its_inputs() -> None:
    assert list(NAMES) == list(INPUTS)
    order = list(INPUTS)
    for name, inputs in INPUTS.items():
        assert all(order.index(each) < order.index(name) for each in inputs)


@pytest.mark.parametrize(
    ("drifted", "stage"),
    [
        (("token_logp", "token_ratio", "loss"), "logp"),
        (("token_policy", "per_sequence_policy", "loss"), "token terms"),
        (("per_sequence_policy", "policy_loss", "loss"), "per-sequence policy"),
        (("loss",), "loss"),
        (("grad_policy_logits",), "gradient"),
        (("advantages", "token_policy", "grad_policy_logits"), "advantages"),
    ],
)
def test_the_first_one_is_found(drifted: tuple[str, ...], stage: str) -> None:
    found = first_stage({**EVERYTHING, **dict.fromkeys(drifted, True)})
    assert found is not None
    assert found.name == stage
    assert not found.unseen


def test_without_stages_the_outputs_alone_are_judged() -> None:
    found = first_stage({"advantages": False, "per_sequence_policy": True, "loss": True})
    assert found is not None
    assert (found.name, found.inputs) == ("per-sequence policy", ("advantages",))
    assert set(found.unseen) == {"token terms", "ratio", "logp"}


def test_nothing_drifts_nothing_is_found() -> None:
    assert first_stage(EVERYTHING) is None
    assert first_stage({"loss (run 2)": True}) is None


def test_names_are_put_in_order() -> None:
    assert in_order(["loss", "other", "token_logp", "loss (run 2)"]) == [
        "token_logp",
        "loss",
        "loss (run 2)",
        "other",
    ]
