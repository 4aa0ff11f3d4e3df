"""Training runs for tests: all ranks of a DP degree as virtual ranks in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import torch

from harness.workloads.ranks import Exchange, Place, TrainingProgram
from harness.workloads.tiny_training import TinyWorkload, tiny_contract
from harness.workloads.training import Recipe, Update, Workload, train
from harness.workloads.trajectory import digests_of, state_of
from harness.workloads.uniform_stream import Mt19937Stream
from loss_ops.gather import Gathered, Program, Request
from loss_ops.virtual_ranks import run_virtual

T = TypeVar("T")

Digests = list[dict[str, str]]


def digests_by_rank(
    make: Callable[[], Workload],
    degree: int,
    updates: Iterable[int],
    recipe: Recipe | None = None,
    on_update: Callable[[Update, Workload], None] = lambda update, workload: None,
) -> list[Digests]:
    """The digests of parameters, loss and rewards after each update, as each rank sees them."""
    workloads = [make() for _ in range(degree)]
    seen: list[Digests] = [[] for _ in workloads]

    def note(rank: int, update: Update) -> None:
        seen[rank].append(digests_of(state_of(update, workloads[rank].parameters())))
        on_update(update, workloads[rank])

    numbers = list(updates)
    programs = [
        train(
            workload,
            numbers,
            Place(rank, degree),
            recipe or Recipe(),
            lambda update, rank=rank: note(rank, update),
        )
        for rank, workload in enumerate(workloads)
    ]
    run_virtual_ranks(programs)
    return seen


def tiny(seed: int = 0, **fields: object) -> Callable[[], TinyWorkload]:
    """Makes the tiny policy with its own stream."""
    return lambda: TinyWorkload(Mt19937Stream(seed), contract=tiny_contract(**fields))  # type: ignore[arg-type]


def run_virtual_ranks(programs: Sequence[TrainingProgram[T]]) -> list[T]:
    """Run one program per DP rank to its end; all make the same kind of request in each round.

    Raises RuntimeError when they do not, which on real ranks would hang.
    """
    results: dict[int, T] = {}
    answers: list[Gathered] | None = None
    while True:
        requests: list[Request | Exchange] = []
        for rank, program in enumerate(programs):
            try:
                requests.append(next(program) if answers is None else program.send(answers[rank]))
            except StopIteration as stop:
                results[rank] = stop.value
        if not requests:
            return [results[rank] for rank in range(len(programs))]
        if len(requests) < len(programs):
            raise RuntimeError(f"virtual ranks out of step: ranks {sorted(results)} ended before the others")
        answers = _answers(requests)


def _answers(requests: list[Request | Exchange]) -> list[Gathered]:
    exchanges = [request for request in requests if isinstance(request, Exchange)]
    if not exchanges:
        asked = {(0, rank): _asking(request) for rank, request in enumerate(requests)}  # type: ignore[arg-type]
        received = run_virtual(asked)
        return [received[0, rank] for rank in range(len(requests))]
    if len(exchanges) < len(requests):
        raise RuntimeError("virtual ranks out of step: some exchange pieces while others do not")
    pieces = [request.tensor.split(list(request.send)) for request in exchanges]
    # Each piece is added in place by whoever receives it, so it must be the receiver's own.
    return [Gathered(torch.clone(sent[rank]) for sent in pieces) for rank in range(len(exchanges))]


def _asking(request: Request) -> Program[Gathered]:
    return (yield request)
