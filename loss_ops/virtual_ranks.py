"""Virtual ranks: the programs of all ranks of a layout, driven in lockstep inside one process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from torch import Tensor

from loss_ops.gather import AllReduce, Gathered, Program, Request

Place = tuple[int, int]
T = TypeVar("T")


class NeedsRealRanks(RuntimeError):
    """A request that only a real collective can answer: its order is the collective's own."""


def run_virtual(programs: Mapping[Place, Program[T]]) -> dict[Place, T]:
    """Run one program per (tp_rank, dp_rank) of a full mesh to its end.

    In each round every program makes one request on the same axis, or all end, or all raise the same error,
    which is raised. Raises RuntimeError when they disagree, which on real ranks would hang.
    """
    results: dict[Place, T] = {}
    answers: dict[Place, Gathered] | None = None
    while len(results) < len(programs):
        requests: dict[Place, Request] = {}
        errors: list[Exception] = []
        for place, program in programs.items():
            try:
                requests[place] = next(program) if answers is None else program.send(answers[place])
            except StopIteration as stop:
                results[place] = stop.value
            except Exception as error:
                errors.append(error)
        if errors:
            _raise_alike(errors, len(programs))
        if requests:
            _check(requests, len(programs))
            answers = _exchange(requests)
    return results


def _raise_alike(errors: list[Exception], expected: int) -> None:
    if len(errors) == expected and len({(type(each), str(each)) for each in errors}) == 1:
        raise errors[0]
    found = f"{len(errors)} of {expected} virtual ranks raised, or raised different errors; real ones would hang"
    raise RuntimeError(f"{found}: {errors[0]}") from errors[0]


def _check(requests: Mapping[Place, Request], expected: int) -> None:
    kinds = {(type(request).__name__, request.axis) for request in requests.values()}
    if len(requests) != expected or len(kinds) != 1:
        raise RuntimeError(f"virtual ranks out of step: {len(requests)} of {expected} requests, of kinds {kinds}")


def _exchange(requests: Mapping[Place, Request]) -> dict[Place, Gathered]:
    lines: dict[int, dict[int, Tensor]] = {}
    by_tp = next(iter(requests.values())).axis == "tp"
    for (tp_rank, dp_rank), request in requests.items():
        line, position = (dp_rank, tp_rank) if by_tp else (tp_rank, dp_rank)
        lines.setdefault(line, {})[position] = request.tensor
    received = {line: Gathered(parts[index] for index in range(len(parts))) for line, parts in lines.items()}
    if any(isinstance(request, AllReduce) for request in requests.values()):
        received = {line: Gathered([_reduced(parts)]) for line, parts in received.items()}
    return {(tp_rank, dp_rank): received[dp_rank if by_tp else tp_rank] for tp_rank, dp_rank in requests}


def _reduced(parts: list[Tensor]) -> Tensor:
    """Two addends have one sum; the order of more is the real collective's own and is not imitated."""
    if len(parts) > 2:
        raise NeedsRealRanks(
            f"an all_reduce over {len(parts)} ranks has no order of its own: run it on real ranks"
        )
    return parts[0] + parts[1] if len(parts) == 2 else parts[0].clone()
