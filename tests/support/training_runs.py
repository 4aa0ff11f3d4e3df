"""Training runs for tests: all ranks of a DP degree as virtual ranks in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from harness.workloads.ranks import Place, run_virtual_ranks
from harness.workloads.tiny_training import TinyWorkload, tiny_contract
from harness.workloads.training import Recipe, Update, Workload, train
from harness.workloads.trajectory import digests_of, state_of
from harness.workloads.uniform_stream import Mt19937Stream

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
