"""How much a match is worth: quantities that could hardly have shown a difference."""

from collections.abc import Callable, Iterable, Iterator

from reports.cases import CaseResult, QuantityResult
from reports.verdicts import Expect, Verdict

_FULL = 0.995


def evidence_lines(cases: Iterable[CaseResult]) -> Iterator[str]:
    """Yield a line about measured power and one about mostly-zero gradients, where either is partial."""
    quantities = [quantity for case in cases if case.expect is Expect.MATCH for quantity in case.quantities]
    seen = {quantity.name for quantity in quantities if quantity.verdict is Verdict.DRIFT}
    power = _least(quantities, lambda quantity: quantity.power)
    power = {name: chance for name, chance in power.items() if chance or name not in seen}
    if unproven := [name for name, chance in power.items() if not chance]:
        yield f"not proven in some case, where no changed summation order would show: {', '.join(unproven)}"
    if power:
        yield f"lowest chance in any case that a changed summation order would show: {_shares(power)}"
    nonzero = _least(quantities, lambda quantity: quantity.nonzero_share)
    if nonzero:
        yield f"lowest share in any case of elements that are not zero: {_shares(nonzero)}"


def _least(
    quantities: Iterable[QuantityResult], share: Callable[[QuantityResult], float | None]
) -> dict[str, float]:
    least: dict[str, float] = {}
    for quantity in quantities:
        value = share(quantity)
        if value is not None:
            least[quantity.name] = min(value, least.get(quantity.name, 1.0))
    return {name: value for name, value in least.items() if value < _FULL}


def _shares(shares: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.2%}" for name, value in shares.items())
