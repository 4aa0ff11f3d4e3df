"""The public command on real ranks: green, drifting, broken on one rank. Few launches, each asked a lot."""

import hashlib
import json
import os
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import harness.cli
from grpo_contract import ShardingSpec
from loss_ops.quantities import GRADIENT
from loss_ops.virtual_layout import run_layout
from reports import CaseResult, Report, ReportVerdict, Verdict
from support.batches import SLICE, drawn

ROOT = Path(harness.cli.__file__).resolve().parents[1]

RECORDER = """
    import hashlib, json, os
    from pathlib import Path
    from loss_ops.distributed_loss import DistributedGRPOLossOp

    FOLDER = Path(os.environ["RECORDED"])

    def digest(tensor):
        return hashlib.sha256(tensor.detach().contiguous().reshape(-1).numpy().tobytes()).hexdigest()

    class Recorder(DistributedGRPOLossOp):
        \"\"\"The good op; writes down what a rank got.\"\"\"

        def apply(self, logits, *tensors, sharding, **options):
            result = super().apply(logits, *tensors, sharding=sharding, **options)
            held = {name: digest(value) for name, value in vars(result).items() if hasattr(value, "detach")}
            place = f"{sharding.tp_degree}x{sharding.dp_degree}-{sharding.tp_rank}-{sharding.dp_rank}"

            def write(gradient):
                held["grad_policy_logits"] = digest(gradient)
                (FOLDER / f"{place}.json").write_text(json.dumps(held))

            logits.register_hook(write)
            return result
"""

LOCAL_MEAN = """
    import torch
    import torch.distributed as dist

    def mean_of_local_means(logits, action_ids, old_logps, rewards, *, contract, sharding, completion_mask,
                            ref_local_logits, tp_group=None, dp_group=None):
        \"\"\"Each rank divides by its own tokens; the all_reduced mean of that is no mean of the batch.\"\"\"
        real = contract.logprob.real_vocab_size
        logp = logits[..., :real].log_softmax(-1).gather(-1, action_ids[..., None])[..., 0]
        ratio = torch.where(completion_mask, logp - old_logps, 0.0).exp()
        terms = torch.where(completion_mask, -ratio * rewards[:, None], 0.0)
        local = terms.sum() / completion_mask.sum()
        total = local.detach().clone()
        if dp_group is not None:
            dist.all_reduce(total, group=dp_group)
            total /= dp_group.size()
        return {
            "loss": local + (total - local).detach(),
            "per_sequence_policy": torch.stack([row.sum() for row in terms]),
        }
"""

ONE_RANK_FAILS = """
    from loss_ops.distributed_loss import DistributedGRPOLossOp

    class Fails(DistributedGRPOLossOp):
        def apply(self, *tensors, sharding, **options):
            if sharding.dp_degree == 2 and sharding.dp_rank == 1:
                raise RuntimeError("no memory left on this rank alone")
            return super().apply(*tensors, sharding=sharding, **options)
"""


@dataclass(frozen=True)
class Run:
    """What a command left."""

    status: int
    report: Report
    err: str

    def case(self, name: str) -> CaseResult:
        return next(case for case in self.report.cases if case.name == name)

    def verdicts(self, start: str) -> dict[str, Verdict]:
        return {case.name: case.verdict for case in self.report.cases if case.name.startswith(start)}


def command(folder: Path, *tokens: str, module: str = "", **environ: str) -> Run:
    """`grpo-verify ... --json` in `folder`, where `module` is the user's own op."""
    if module:
        (folder / "my_op.py").write_text(textwrap.dedent(module))
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("GRPO_VERIFY_", "PYTEST"))}
    done = subprocess.run(
        [sys.executable, "-m", "harness.cli", *tokens, "--json"],
        cwd=folder,
        env=kept | {"PYTHONPATH": str(ROOT)} | environ,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.stdout, done.stderr
    return Run(done.returncode, Report.from_json(done.stdout), done.stderr)


# A good op, on a built-in batch and on a real step


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("good")
    return command(folder, "--tp", "2", "--dp", "2", "--batch", "seed", "--batch", str(SLICE))


def test_a_good_op_is_green(good: Run) -> None:
    assert good.status == good.report.exit_status == 0, good.err
    assert good.report.verdict is ReportVerdict.MATCH
    layouts = ("1x1", "1x2", "2x1", "2x2")
    assert good.verdicts("seed/") == {f"seed/s0/{layout}": Verdict.MATCH for layout in layouts}
    assert good.verdicts(SLICE.stem) == {f"{SLICE.stem}/{layout}": Verdict.MATCH for layout in layouts}
    assert good.report.culprit is None
    assert not good.report.errors


def test_every_planted_fault_was_seen(good: Run) -> None:
    planted = good.verdicts("fault/")
    assert len(planted) > 12
    assert set(planted.values()) == {Verdict.CAUGHT, Verdict.REFUSED}
    assert good.report.planted.caught == good.report.planted.total == len(planted)
    factor = next(case for case in good.report.cases if "gradient_scaled_by_dp" in case.name)
    (gradient,) = factor.drifted
    assert (gradient.name, gradient.pattern) == (GRADIENT, "constant factor 2")
    disagreement = next(case for case in good.report.cases if case.verdict is Verdict.REFUSED)
    assert disagreement.reason is not None
    assert "objective.beta on rank (tp 1, dp 0): expected 0.04 as on rank (tp 0, dp 0)" in disagreement.reason


def test_every_quantity_was_compared_whole(good: Run) -> None:
    case = good.case("seed/s0/2x2")
    sizes = {quantity.name: quantity.elements for quantity in case.quantities}
    vectors = ("per_sequence_policy", "per_sequence_kl", "per_sequence_active_tokens", "advantages")
    assert sizes == {
        **dict.fromkeys(("loss", "policy_loss", "kl"), 1),
        **dict.fromkeys(vectors, 8),
        "clip_counts": 4,
        GRADIENT: 8 * 32 * 1024,
    }
    assert all(quantity.mismatched == 0 for quantity in case.quantities)
    assert case.transport == "gloo"


def test_the_report_says_under_which_contract(good: Run) -> None:
    contract = drawn("seed").contract
    assert good.report.contract["seed"] == contract.model_dump(mode="json")
    assert good.report.environment["torch"] == torch.__version__
    assert good.report.environment["num_threads"] == 1


# Real ranks and their virtual twins


def digest(value: Tensor) -> str:
    return hashlib.sha256(value.detach().contiguous().reshape(-1).numpy().tobytes()).hexdigest()


def test_real_ranks_have_the_bits_of_their_virtual_twins(tmp_path: Path) -> None:
    layouts = ((3, 1), (1, 3), (2, 2))
    asked = ",".join(f"{tp}x{dp}" for tp, dp in layouts)
    run = command(
        tmp_path, "--layouts", asked, "--batch", "ragged", "--no-controls", "--op", "my_op:Recorder",
        module=RECORDER, RECORDED=str(tmp_path),
    )  # fmt: skip
    assert run.status == 0, run.err
    assert set(run.verdicts("").values()) == {Verdict.MATCH}
    batch = drawn("ragged")
    for tp, dp in layouts:
        outcome = run_layout(batch, tp, dp)
        for (tp_rank, dp_rank), result in outcome.results.items():
            held = json.loads((tmp_path / f"{tp}x{dp}-{tp_rank}-{dp_rank}.json").read_text())
            place = ShardingSpec.even(tp, dp, rank=dp_rank * tp + tp_rank, contract=batch.contract)
            shard = outcome.gradient[slice(*place.sequence_shard), :, slice(*place.vocab_shard)]
            twin: dict[str, Any] = {GRADIENT: digest(shard)}
            twin |= {name: digest(value) for name, value in vars(result).items() if isinstance(value, Tensor)}
            assert held == twin, f"{tp}x{dp} rank ({tp_rank}, {dp_rank})"
            assert len(twin) == 8


# Ops of others


def test_an_op_that_drifts_is_located(tmp_path: Path) -> None:
    run = command(
        tmp_path, "--layouts", "1x1,1x2", "--batch", "seed", "--no-controls",
        "--op", "my_op:mean_of_local_means", module=LOCAL_MEAN,
    )  # fmt: skip
    assert (run.status, run.report.verdict) == (1, ReportVerdict.DRIFT), run.err
    assert run.case("seed/s0/1x1").verdict is not Verdict.DRIFT
    case = run.case("seed/s0/1x2")
    assert case.verdict is Verdict.DRIFT
    found = {quantity.name: quantity for quantity in case.quantities}
    assert found.keys() == {"loss", "per_sequence_policy", GRADIENT}
    assert [name for name, quantity in found.items() if quantity.mismatched] == ["loss", GRADIENT]
    batch = drawn("seed")
    first = found[GRADIENT].first
    assert first is not None
    assert (first.sequence, first.token, first.column) == (0, 0, 0)
    assert first.owner is not None
    assert (first.owner.tp, first.owner.dp) == (0, 0)
    assert found[GRADIENT].sequences == tuple(range(8))
    # Each rank divides by its own tokens in place of all: the factor that the first element is off by.
    tokens = batch.completion_mask.sum(1)
    factor = float(tokens.sum()) / float(tokens[:4].sum())
    assert float(first.got) / float(first.expected) == pytest.approx(factor, rel=1e-4)


def test_a_rank_that_fails_alone_is_named(tmp_path: Path) -> None:
    run = command(
        tmp_path, "--layouts", "1x1,1x2", "--batch", "small", "--no-controls", "--op", "my_op:Fails",
        module=ONE_RANK_FAILS,
    )  # fmt: skip
    assert (run.status, run.report.verdict) == (4, ReportVerdict.FAILED), run.err
    assert run.report.culprit is not None
    assert run.report.culprit.startswith("rank 1 failed in forward of case 'small/s0/1x2': ")
    assert "no memory left on this rank alone" in run.report.culprit
    failed = [case for case in run.report.cases if case.verdict is Verdict.FAILED]
    assert [str(case.layout) for case in failed] == ["1x2"]


# An op that asks which rank it is, or how many there are

ASKS = """
    import os
    import torch.distributed as dist
    from loss_ops import kernel_registry

    def called(tensors, context):
        found = kernel_registry.get_loss_op(context["contract"], device="cpu").op.apply(*tensors, **context)
        names = ("loss", "policy_loss", "kl", "per_sequence_policy", "per_sequence_kl", "advantages")
        return {name: getattr(found, name) for name in names}

    def scaled(number):
        def op(*tensors, **context):
            found = called(tensors, context)
            return found | {"loss": found["loss"] * number()}
        return op

    world_size = scaled(lambda: dist.get_world_size())
    rank = scaled(lambda: 1 + dist.get_rank())
    variable = scaled(lambda: int(os.environ["WORLD_SIZE"]))
    local_rank = scaled(lambda: 1 + int(os.environ["LOCAL_RANK"]))

    def world_group(*tensors, **context):
        found = called(tensors, context)
        total = found["kl"].detach().clone()
        dist.all_reduce(total)
        return found | {"kl": total / dist.get_world_size()}

    def kl_on_rank_0(*tensors, **context):
        found = called(tensors, context)
        return {name: value for name, value in found.items() if name != "kl" or os.environ["LOCAL_RANK"] == "0"}
"""


@pytest.mark.parametrize(
    ("name", "status", "words"),
    [
        ("world_size", 1, "constant factor 2 in loss"),
        ("rank", 1, "constant factor 2 in loss"),
        ("variable", 1, "constant factor 2 in loss"),
        ("local_rank", 2, "at 1x1: expected the same bits on every rank, got others on rank (tp 0, dp 1)"),
        ("kl_on_rank_0", 2, "kl at 1x1: expected the same bits on every rank"),
    ],
)
def test_an_op_that_depends_on_the_ranks_around_it_is_seen(
    name: str, status: int, words: str, tmp_path: Path
) -> None:
    run = command(
        tmp_path, "--op", f"my_op:{name}", "--layouts", "1x2", "--batch", "seed", "--no-controls", module=ASKS
    )
    case = run.case("seed/s0/1x2")
    told = case.reason if case.diagnosis is None else case.diagnosis.words
    assert run.status == status, run.err
    assert words in (told or "")


def test_the_default_group_of_an_op_is_its_layout(tmp_path: Path) -> None:
    """Four ranks are started, and each layout is a job of its own."""
    run = command(
        tmp_path, "--op", "my_op:world_group", "--tp", "2", "--dp", "2", "--batch", "seed", "--no-controls",
        module=ASKS,
    )  # fmt: skip
    assert set(run.verdicts("seed/").values()) == {Verdict.MATCH}, run.report


# Virtual ranks and an op of one's own

STAGED = """
    from dataclasses import replace
    from loss_ops.distributed_loss import DistributedGRPOLossOp
    from loss_ops.stages import NATIVE_STAGES

    def in_halves(terms_ST, active_ST, inputs):
        total = NATIVE_STAGES.token_sum(terms_ST, active_ST, inputs)
        return total * (1 + 2.0**-23) if inputs.sharding.dp_degree > 1 else total

    class Good(DistributedGRPOLossOp):
        pass

    class Bad(DistributedGRPOLossOp):
        def __init__(self):
            super().__init__(replace(NATIVE_STAGES, token_sum=in_halves))

    def own_collectives(*tensors, **context):
        return {}
"""


@pytest.mark.parametrize(
    ("name", "status", "verdicts"),
    [
        ("Good", 0, {"1x1": Verdict.MATCH, "1x2": Verdict.MATCH, "2x1": Verdict.MATCH}),
        ("Bad", 1, {"1x1": Verdict.MATCH, "1x2": Verdict.DRIFT, "2x1": Verdict.MATCH}),
        ("own_collectives", 3, dict.fromkeys(("1x1", "1x2", "2x1"), Verdict.SKIPPED)),
    ],
)
def test_virtual_ranks_drive_what_leaves_its_gathers_to_them(
    name: str, status: int, verdicts: dict[str, Verdict], tmp_path: Path
) -> None:
    layouts = ("--layouts", ",".join(verdicts))
    run = command(
        tmp_path, "--op", f"my_op:{name}", "--virtual", *layouts, "--batch", "seed", "--no-controls", module=STAGED
    )
    assert run.status == status, run.err
    assert run.verdicts("seed/") == {f"seed/s0/{layout}": verdict for layout, verdict in verdicts.items()}
    reasons = {case.reason for case in run.report.cases if case.verdict is Verdict.SKIPPED}
    assert all("may call torch.distributed itself" in (reason or "") for reason in reasons)
