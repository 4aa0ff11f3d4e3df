"""Errors: every problem found, each with what, where, expected and got, under a stable code."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong: a stable code, the field or slot, and both sides of the disagreement."""

    code: str
    where: str
    expected: str
    got: str

    def __str__(self) -> str:
        return f"{self.where}: expected {self.expected}, got {self.got}"

    def to_dict(self) -> dict[str, str]:
        """The problem as plain strings, for a message between ranks or a report."""
        return asdict(self)


class GRPOVerifyError(ValueError):
    """Base of all errors a user can cause. `code` is stable; `problems` holds everything that was found."""

    code = "error"
    title = "invalid request"

    def __init__(self, problems: Iterable[Problem] | Problem | str) -> None:
        if isinstance(problems, str):
            self.problems: tuple[Problem, ...] = ()
            super().__init__(problems)
            return
        self.problems = (problems,) if isinstance(problems, Problem) else tuple(problems)
        super().__init__(self._message())

    def _message(self) -> str:
        if len(self.problems) == 1:
            return f"{self.title}: {self.problems[0]}"
        lines = "\n".join(f"  - {problem}" for problem in self.problems)
        return f"{self.title} ({len(self.problems)} problems):\n{lines}"

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.problems or str(self),))


class ContractError(GRPOVerifyError):
    """A contract or a sharding that cannot hold."""

    code = "contract"
    title = "invalid contract"


class LossContractError(ContractError):
    """The loss part: objective, advantage, reduction, geometry, or context parallelism asked for."""

    code = "loss_contract"
    title = "invalid loss contract"


class LogprobContractError(ContractError):
    """The nested logprob part: vocabulary, tiles, dtype, number of owned token slots."""

    code = "logprob_contract"
    title = "invalid logprob contract"


class ShardingError(ContractError):
    """A rank's place that does not partition the vocabulary or the sequences."""

    code = "sharding"
    title = "invalid sharding"


class InputError(GRPOVerifyError):
    """A tensor that breaks the call's rules; active slots are named as [sequence, token]."""

    code = "input"
    title = "invalid input"


class PreflightError(GRPOVerifyError):
    """Ranks that disagree; names rank, field and both values."""

    code = "preflight"
    title = "preflight: ranks disagree"


ERROR_CLASSES: dict[str, type[GRPOVerifyError]] = {
    each.code: each
    for each in (
        GRPOVerifyError,
        ContractError,
        LossContractError,
        LogprobContractError,
        ShardingError,
        InputError,
        PreflightError,
    )
}


def error_from(problems: Iterable[Problem]) -> GRPOVerifyError:
    """The one error that carries `problems`; a problem's code is `class.detail`, e.g. `sharding.gap`.

    One class of problem gives that class; a mixture gives their nearest common base.
    """
    found = tuple(problems)
    classes: set[type[GRPOVerifyError]] = {ERROR_CLASSES[problem.code.partition(".")[0]] for problem in found}
    candidate: type[GRPOVerifyError]
    for candidate in (*classes, ContractError):
        if all(issubclass(each, candidate) for each in classes):
            return candidate(found)
    return GRPOVerifyError(found)
