"""The verdict on a case, and on a fault planted in it, with its reason. No torch."""

from __future__ import annotations

from collections.abc import Sequence

from harness.ranks.rank_outcome import RankOutcome
from reports.cases import QuantityResult
from reports.verdicts import Verdict


def case_verdict(
    outcomes: Sequence[RankOutcome],
    quantities: Sequence[QuantityResult],
    expect: str,
    must_show: tuple[str, ...],
    pattern: str | None,
    must_say: str | None,
) -> tuple[Verdict, str | None]:
    """The verdict, and why where it does not say so itself; for the last three see `case_result`."""
    verdict, reason = _verdict(outcomes, quantities)
    if verdict is Verdict.DRIFT and must_show:
        verdict, reason = _judge_fault(quantities, must_show, pattern)
    if expect == "refused":
        verdict, reason = _judge_disagreement(outcomes, verdict, reason, must_say)
    if verdict is Verdict.MATCH and expect == "match" and (hollow := _hollow(outcomes, quantities)):
        verdict, reason = Verdict.INCONCLUSIVE, hollow
    return verdict, reason


def _verdict(outcomes: Sequence[RankOutcome], quantities: Sequence[QuantityResult]) -> tuple[Verdict, str | None]:
    errors = list(dict.fromkeys(outcome.error for outcome in outcomes if outcome.error))
    if errors:
        count = sum(outcome.error is not None for outcome in outcomes)
        alike = count == len(outcomes) and len(errors) == 1
        words = errors[0][1] if alike else f"{count} of {len(outcomes)} ranks: " + " | ".join(e[1] for e in errors)
        return Verdict.REFUSED, words
    for outcome in outcomes:
        if outcome.skipped:
            return Verdict.SKIPPED, outcome.skipped
        if outcome.inconclusive:
            return Verdict.INCONCLUSIVE, outcome.inconclusive
    if any(quantity.mismatched for quantity in quantities):
        return Verdict.DRIFT, None
    return Verdict.MATCH, None


def _hollow(outcomes: Sequence[RankOutcome], quantities: Sequence[QuantityResult]) -> str | None:
    """Why equal bits prove nothing here: counts alone, a gradient of zeros, or a baseline of NaN; else None."""
    drifts = [drift for outcome in outcomes for drift in outcome.drifts]
    broken = sorted({drift.name for drift in drifts if drift.non_finite})
    if broken:
        return f"the baseline holds NaN or infinity in {', '.join(broken)}: equal ones prove nothing"
    floating = {drift.name for drift in drifts if drift.floating}
    verdicts = {quantity.verdict for quantity in quantities if quantity.name in floating}
    if verdicts <= {Verdict.INCONCLUSIVE}:
        return "no floating quantity could have shown a difference on this batch"
    if any(quantity.name == "grad_policy_logits" and not quantity.nonzero_share for quantity in quantities):
        return "the gradient is zero everywhere: equal zeros prove nothing"
    return None


def _judge_disagreement(
    outcomes: Sequence[RankOutcome], verdict: Verdict, reason: str | None, must_say: str | None
) -> tuple[Verdict, str | None]:
    """A planted disagreement is seen where every rank refuses it, in preflight, by the field that differs."""
    errors = {outcome.error for outcome in outcomes}
    (error,) = errors if len(errors) == 1 else (None,)
    if verdict is Verdict.REFUSED and error is not None:
        code, words = error
        if code == "preflight" and (must_say or "") in words:
            return verdict, reason
    return Verdict.MISSED, f"not every rank refused it for {must_say}: {reason or verdict.value}"


def _judge_fault(
    quantities: Sequence[QuantityResult], must_show: tuple[str, ...], pattern: str | None
) -> tuple[Verdict, str | None]:
    shown = [each for each in quantities if each.mismatched and each.name in must_show]
    if not shown:
        return Verdict.MISSED, f"none of {', '.join(must_show)} drifted, which this fault must move"
    if pattern and all(each.pattern != pattern for each in shown):
        return Verdict.MISSED, f"seen, but not as {pattern!r}: {shown[0].pattern or 'no pattern'}"
    seen = f"seen in {', '.join(each.name for each in shown)}"
    return Verdict.CAUGHT, f"{seen}: {pattern}" if pattern else seen
