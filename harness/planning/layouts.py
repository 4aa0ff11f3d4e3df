"""Which TP x DP layouts a run covers, and which of them a batch or a machine cannot hold."""

from __future__ import annotations

from grpo_contract import GRPOLossContract, Problem, ShardingSpec
from harness.settings.run_config import RunConfig

Layout = tuple[int, int]
BASELINE: Layout = (1, 1)
DEFAULT_CPU_RANKS = 4
MOST_CPU_RANKS = 64
DEFAULT_VIRTUAL_DEGREE = 8
MOST_VIRTUAL: Layout = (64, 512)


def named(layout: Layout) -> str:
    """A layout as it is written: TP degree x DP degree."""
    return f"{layout[0]}x{layout[1]}"


def layouts_of(config: RunConfig, available_ranks: int | None) -> tuple[Layout, ...]:
    """The layouts to run, by number of ranks and then TP degree; an explicit list stays as it is given.

    With --tp N and --dp M every (t, d) where t divides N and d divides M; with neither, every layout that
    the devices reach, or 4 ranks on the CPU, or with virtual ranks those of --tp 8 --dp 8.
    """
    if config.layouts:
        return config.chosen_layouts
    if asks_for_degrees(config) or config.virtual:
        alone = 1 if asks_for_degrees(config) else DEFAULT_VIRTUAL_DEGREE
        reached = [(tp, dp) for tp in divisors(config.tp or alone) for dp in divisors(config.dp or alone)]
    else:
        ranks = min(available_ranks or DEFAULT_CPU_RANKS, MOST_CPU_RANKS)
        reached = [(tp, dp) for tp in range(1, ranks + 1) for dp in range(1, ranks // tp + 1)]
    return tuple(sorted(reached, key=lambda layout: (layout[0] * layout[1], layout[0])))


def asks_for_degrees(config: RunConfig) -> bool:
    """Whether the layouts were asked for, in one way or another."""
    return bool(config.layouts) or config.tp is not None or config.dp is not None


def divisors(number: int) -> tuple[int, ...]:
    """Every divisor, ascending."""
    return tuple(each for each in range(1, number + 1) if number % each == 0)


def unfit(layout: Layout, contract: GRPOLossContract) -> str | None:
    """Why a batch cannot be split this way; None when it can."""
    problems = ShardingSpec.even_problems(*layout, contract)
    axes = {"sharding.tp_degree": "TP", "sharding.dp_degree": "DP"}
    told = [f"{problem.got} {axes[problem.where]} ranks (expected {problem.expected})" for problem in problems]
    return " and ".join(told) or None


def short_of_devices(layout: Layout, available_ranks: int | None) -> str | None:
    """Why a machine cannot run this layout; None when it can."""
    needed = layout[0] * layout[1]
    if available_ranks is None or needed <= available_ranks:
        return None
    return f"needs {needed} devices, this machine has {available_ranks}"


def rank_problems(config: RunConfig, layouts: tuple[Layout, ...], device: str) -> list[Problem]:
    """More ranks than a CPU run, or degrees than a virtual layout, may have."""
    if config.virtual:
        return _virtual_problems(config, layouts)
    if device != "cpu":
        return []
    largest = max(layouts, key=lambda layout: layout[0] * layout[1])
    ranks = largest[0] * largest[1]
    if ranks <= MOST_CPU_RANKS:
        return []
    where = " ".join(config.where(name) for name in ("layouts", "tp", "dp") if config.is_given(name))
    expected = f"at most {MOST_CPU_RANKS} ranks on the CPU"
    return [Problem("request.ranks", where, expected, f"{ranks} (layout {named(largest)})")]


def _virtual_problems(config: RunConfig, layouts: tuple[Layout, ...]) -> list[Problem]:
    too_large = [each for each in layouts if each[0] > MOST_VIRTUAL[0] or each[1] > MOST_VIRTUAL[1]]
    if not too_large:
        return []
    expected = f"virtual layouts up to {named(MOST_VIRTUAL)}"
    where = " ".join(config.where(name) for name in ("layouts", "tp", "dp") if config.is_given(name))
    return [Problem("request.ranks", where, expected, named(too_large[-1]))]


def degree_problems(
    config: RunConfig, layouts: tuple[Layout, ...], batch: str, contract: GRPOLossContract
) -> list[Problem]:
    """Degrees that were asked for and that leave a rank without a tile or a sequence of this batch."""
    found: dict[tuple[str, int], Problem] = {}
    for layout in layouts:
        for problem in ShardingSpec.even_problems(*layout, contract):
            axis = problem.where.rpartition(".")[2].removesuffix("_degree")
            degree = int(problem.got)
            # A divisor of what was typed says nothing that the typed degree does not say.
            if config.layouts or degree == getattr(config, axis):
                where = config.where("layouts" if config.layouts else axis)
                expected = f"a {axis.upper()} degree of {problem.expected} of batch {batch}"
                found[axis, degree] = Problem(problem.code, where, expected, problem.got)
    return list(found.values())
