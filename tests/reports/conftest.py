"""Makers of small cases and reports."""

from collections.abc import Callable

import pytest

from reports import CaseResult, Expect, FirstDrift, Layout, QuantityResult, Rank, Report, Verdict

QUANTITIES = (
    "loss",
    "policy_loss",
    "kl",
    "per_sequence_policy",
    "per_sequence_kl",
    "per_sequence_active_tokens",
    "advantages",
    "clip_counts",
    "grad_policy_logits",
)

CaseMaker = Callable[..., CaseResult]


def matching(name: str = "loss") -> QuantityResult:
    return QuantityResult(name=name, verdict=Verdict.MATCH, elements=4, power=1.0)


def drifting(name: str = "grad_policy_logits") -> QuantityResult:
    first = FirstDrift(
        sequence=3,
        token=17,
        column=1025,
        owner=Rank(tp=1, dp=0),
        expected="1.0",
        got="2.0",
        expected_bits="0x3f800000",
        got_bits="0x40000000",
    )
    return QuantityResult(
        name=name,
        verdict=Verdict.DRIFT,
        elements=32768,
        mismatched=12,
        max_ulp=8388608,
        max_abs=1.0,
        first=first,
        sequences=(3, 5, 6, 7),
        pattern="constant factor 2",
        nonzero_share=0.25,
    )


def make_case(verdict: str = "match", expect: str = "match", tp: int = 2, dp: int = 2, **fields) -> CaseResult:
    if "quantities" not in fields:
        compared = {"match": tuple(map(matching, QUANTITIES)), "drift": (matching(), drifting())}
        fields["quantities"] = compared.get(verdict, ())
    if verdict in ("skipped", "failed", "inconclusive", "missed"):
        fields.setdefault("reason", f"{verdict} for a reason")
    defaults = {
        "name": f"layout {tp}x{dp}",
        "op": "grpo_loss",
        "transport": "gloo",
        "batch": "seed",
        "seed": 0,
    }
    return CaseResult(
        **{**defaults, **fields},
        layout=Layout(tp=tp, dp=dp),
        expect=Expect(expect),
        verdict=Verdict(verdict),
    )


def make_rich_report() -> Report:
    """A report in which everything that can be shown is shown."""
    faults = ("rank_local_normalizer", "rank_local_advantages", "gradient_times_dp", "swapped_sequences")
    cases = [
        *(make_case(tp=tp, dp=dp, batch=batch) for tp, dp in ((1, 2), (2, 1)) for batch in ("seed", "long")),
        make_case("drift", batch="captures/a rather long name of a step-1200.safetensors"),
        make_case("drift", expect="any", name="third-party loss", op="liger"),
        make_case("inconclusive", dp=3),
        *(make_case("skipped", tp=4, dp=dp, reason="needs 8 ranks, this node has 4") for dp in (2, 4)),
        *(make_case("caught", "caught", name=name) for name in faults),
        make_case("refused", "refused", name="beta_on_one_rank"),
        make_case("missed", "caught", name="bf16_token_sum"),
        make_case("skipped", "caught", name="order_dependent_sum", reason="needs 3 ranks on one axis"),
    ]
    return Report.assemble(
        cases=cases,
        command=("grpo-verify", "--tp", "2", "--dp", "2"),
        environment={"device": "cpu", "torch": "2.11.0", "threads": 1},
        contract={"objective": {"beta": 0.04}},
        numeric_fingerprint="9f2c4e5ab01d7788" * 4,
        preflight="4 of 4 ranks agree on contract, backend and inputs",
        notes=("--beta 0.04 wins over the capture's 0.1",),
        times={"launch": 9.5, "total": 12.25},
    )


@pytest.fixture(name="make_case")
def _make_case() -> CaseMaker:
    return make_case


@pytest.fixture
def rich_report() -> Report:
    return make_rich_report()
