"""Comparisons that could not have failed are never green."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from grpo_contract import InputError
from harness.comparing.drift import Drift
from harness.files.rundir import RunDir
from harness.launching.launch_outcome import LaunchOutcome, OutcomeKind
from harness.own_ops.ops import quantities_of
from harness.planning.plan import make_plan
from harness.planning.planned import PlannedCase
from harness.ranks.batches import built_in
from harness.ranks.case_result import case_result
from harness.ranks.rank_outcome import RankOutcome
from harness.runs.run_report import make_report
from harness.settings.batch_spec import BUILT_IN, contract_for
from harness.settings.run_config import RunConfig
from harness.verify import verify_loss
from loss_ops.batch import GlobalBatch
from loss_ops.virtual_layout import run_layout
from reports import ReportVerdict, Verdict

Emulated = Callable[[GlobalBatch, int, int], dict[str, Tensor]]


def small(**changes: Tensor) -> GlobalBatch:
    spec = BUILT_IN["small"]
    batch = built_in(spec, 0, contract_for(spec, RunConfig()))
    return GlobalBatch(**{**vars(batch), **changes})


def all_nan(batch: GlobalBatch, tp: int, dp: int) -> dict[str, Tensor]:
    good = run_layout(batch, tp, dp).quantities()
    return {name: value * torch.nan if value.is_floating_point() else value for name, value in good.items()}


def constant(batch: GlobalBatch, tp: int, dp: int) -> dict[str, Tensor]:
    return {"loss": torch.tensor(1.5), "grad_policy_logits": torch.ones_like(batch.policy_logits)}


def no_gradient(batch: GlobalBatch, tp: int, dp: int) -> dict[str, Tensor]:
    loss = run_layout(batch, tp, dp).quantities()["loss"]
    return {"loss": loss, "grad_policy_logits": torch.zeros_like(batch.policy_logits)}


@pytest.mark.parametrize(
    ("op", "why"),
    [
        (all_nan, "NaN or infinity"),
        (no_gradient, "zero everywhere"),
        (constant, "no floating quantity could have shown"),
    ],
)
def test_equal_nonsense_is_inconclusive(op: Emulated, why: str) -> None:
    report = verify_loss(op, small(), layouts=["1x2"])
    assert (report.verdict, report.exit_status) == (ReportVerdict.INCONCLUSIVE, 3)
    assert why in (report.cases[-1].reason or "")


BUFFER = torch.zeros(())


def reusing(batch: GlobalBatch, tp: int, dp: int) -> dict[str, Tensor]:
    good = run_layout(batch, tp, dp).quantities()
    BUFFER.copy_(good["kl"] * tp * dp)
    return {**good, "kl": BUFFER}


def test_an_op_that_uses_its_buffers_again_is_seen_through() -> None:
    report = verify_loss(reusing, small(), layouts=["1x2"])
    assert [each.name for each in report.cases[-1].drifted] == ["kl"]


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ({"loss": torch.zeros(()), "kl": 0.5}, "the op's kl: expected a tensor"),
        ({"loss": torch.zeros(()), "policyLoss": torch.zeros(())}, "expected the key policy_loss, got policyLoss"),
    ],
)
def test_what_could_not_be_compared_is_refused(result: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        quantities_of(result, torch.zeros(2))


def test_only_whole_numbers_prove_nothing() -> None:
    report = verify_loss(lambda *_: {"clip_counts": torch.ones(4, dtype=torch.int64)}, small(), layouts=["1x2"])
    assert report.exit_status == 3


def test_quantities_of_another_size_are_refused() -> None:
    def grown(batch: GlobalBatch, tp: int, dp: int) -> dict[str, Tensor]:
        return {"grad_policy_logits": torch.zeros(len(batch.rewards) + dp - 1, *batch.policy_logits.shape[1:])}

    report = verify_loss(grown, small(), layouts=["1x2"])
    assert "the op's grad_policy_logits: expected shape" in (report.cases[-1].reason or "")


def test_one_sequence_under_mean_only_is_compared() -> None:
    contract = contract_for(BUILT_IN["small"], RunConfig()).for_batch(
        num_sequences=1, padded_seq_len=4, vocab_size=64, samples_per_prompt=1, advantage="mean_only"
    )
    draw = torch.Generator().manual_seed(0)
    logits, ids = torch.randn(1, 4, 64, generator=draw), torch.zeros(1, 4, dtype=torch.long)
    batch = GlobalBatch(
        logits,
        logits + torch.randn(1, 4, 64, generator=draw),
        ids,
        -torch.ones(1, 4),
        torch.ones(1),
        ids == 0,
        contract,
    )
    assert verify_loss("native", batch, layouts=["2x1"]).cases[-1].verdict is Verdict.MATCH


def test_a_batch_without_power_is_inconclusive_for_verify_loss_too() -> None:
    contract = contract_for(BUILT_IN["small"], RunConfig()).for_batch(
        num_sequences=2, padded_seq_len=1, vocab_size=2, samples_per_prompt=2
    )
    logits, ids = torch.tensor([[[0.0, 1.0]], [[2.0, 0.5]]]), torch.tensor([[0], [1]])
    batch = GlobalBatch(
        logits, logits + 0.25, ids, -torch.ones(2, 1), torch.tensor([0.0, 1.0]), ids >= 0, contract
    )
    assert verify_loss("native", batch, layouts=["1x2"]).exit_status == 3


def test_a_result_that_got_lost_is_a_failure(tmp_path: object) -> None:
    plan = make_plan(
        RunConfig(tp=2, batch=("seed",), controls="off"), device="cpu", available_ranks=None, faults=()
    )
    report = make_report(plan, {}, LaunchOutcome(OutcomeKind.FINISHED, 1.0), RunDir.create(), (), 1.0)
    assert (report.verdict, report.exit_status) == (ReportVerdict.FAILED, 4)
    assert report.cases[0].reason == "the ranks finished without a result of this case"


def refusal(tp_rank: int, code: str, words: str) -> RankOutcome:
    return RankOutcome(tp_rank=tp_rank, dp_rank=0, error=(code, words))


@pytest.mark.parametrize(
    ("outcomes", "verdict"),
    [
        (
            [refusal(0, "preflight", "objective.beta on rank"), refusal(1, "preflight", "objective.beta on rank")],
            "refused",
        ),
        ([refusal(0, "preflight", "objective.beta on rank"), RankOutcome(tp_rank=1, dp_rank=0)], "missed"),
        ([refusal(0, "input", "no active tokens"), refusal(1, "input", "no active tokens")], "missed"),
        ([refusal(0, "preflight", "rewards differ"), refusal(1, "preflight", "rewards differ")], "missed"),
        ([RankOutcome(tp_rank=0, dp_rank=0, drifts=(Drift(name="loss", elements=1, nonzero=1),))], "missed"),
    ],
)
def test_a_disagreement_is_seen_where_every_rank_refuses_it_by_its_field(
    outcomes: list[RankOutcome], verdict: str
) -> None:
    case = PlannedCase(
        index=0,
        name="fault/beta",
        op="grpo_loss",
        layout=(2, 1),
        batch="control",
        seed=0,
        expect="refused",
        repeat=1,
    )
    found = case_result(case, outcomes, transport="gloo", must_say="objective.beta")
    assert found.verdict is Verdict(verdict)
