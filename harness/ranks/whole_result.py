"""What an op returns for a whole layout at once: its quantities, and what each rank would report of them."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from grpo_contract import InputError, Problem, ShardingSpec
from harness.comparing.frame import Frame
from harness.own_ops.ops import quantities_of, unknown_keys
from harness.ranks.candidate import BY_SEQUENCE
from harness.ranks.rank_comparison import compare_rank
from harness.ranks.rank_outcome import RankOutcome
from loss_ops.batch import GlobalBatch
from loss_ops.quantities import GRADIENT, REPLICATED
from loss_ops.virtual_layout import layout_shardings

Quantities = dict[str, Tensor]
Layout = tuple[int, int]


def known_quantities(quantities: Mapping[str, Tensor], batch: GlobalBatch) -> Quantities:
    """The quantities among what an op returned for `batch`, copied. Raises InputError for others, or none."""
    if not isinstance(quantities, Mapping):
        got = type(quantities).__name__
        raise InputError(Problem("input.result", "the op's result", "a mapping of quantities", got))
    gradient = quantities.get(GRADIENT)
    if gradient is not None and not isinstance(gradient, Tensor):
        expected, got = "a tensor, which can be compared", type(gradient).__name__
        raise InputError(Problem("input.result", f"the op's {GRADIENT}", expected, got))
    named = quantities_of(quantities, batch.policy_logits[:0] if gradient is None else gradient)
    known = {name: value for name, value in named.items() if quantities.get(name) is not None}
    _check_shapes(known, batch)
    if not known:
        expected = f"some of {', '.join((*REPLICATED, GRADIENT))}"
        raise InputError(
            Problem("input.result", "the op's result", expected, ", ".join(map(str, quantities)) or "nothing")
        )
    return known


def unknown_quantities(result: object) -> list[str]:
    """A line that names what an op returned for a whole layout beside its quantities."""
    return unknown_keys(result, (*REPLICATED, GRADIENT))


def _check_shapes(known: Quantities, batch: GlobalBatch) -> None:
    """A whole layout's quantities are whole: what is larger or smaller would be compared in part."""
    sequences = (len(batch.rewards),)
    shapes = {**dict.fromkeys(BY_SEQUENCE, sequences), GRADIENT: tuple(batch.policy_logits.shape)}
    wrong = {name: value for name, value in known.items() if tuple(value.shape) != shapes.get(name, value.shape)}
    if wrong:
        raise InputError(
            [
                Problem("input.result", f"the op's {name}", f"shape {list(shapes[name])}", f"{list(value.shape)}")
                for name, value in wrong.items()
            ]
        )


def outcomes_of(expected: Quantities, got: Quantities, batch: GlobalBatch, layout: Layout) -> list[RankOutcome]:
    """What each rank of a layout would report of whole quantities: its shard of the gradient, and the rest.

    Raises InputError where the layout gave other quantities than the baseline.
    """
    places = layout_shardings(batch, *layout)
    frame = Frame.of(batch, expected, places[0].sequence_shard_bounds)
    return [_outcome(expected, got, each, frame) for each in places]


def _outcome(expected: Quantities, got: Quantities, place: ShardingSpec, frame: Frame) -> RankOutcome:
    shard = (slice(*place.sequence_shard), slice(None), slice(*place.vocab_shard))
    parts = {name: value[shard] if name == GRADIENT else value for name, value in got.items()}
    drifts = compare_rank(expected, parts, place, frame)
    return RankOutcome(tp_rank=place.tp_rank, dp_rank=place.dp_rank, drifts=drifts)
