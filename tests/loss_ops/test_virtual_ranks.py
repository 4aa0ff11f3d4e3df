"""The virtual driver: who receives what, and ranks that are out of step."""

from typing import Any

import pytest
import torch
from torch import Tensor

from loss_ops.gather import AllReduce, Axis, Gather, Program, Request
from loss_ops.real_ranks import RealRanks, process_group
from loss_ops.virtual_ranks import NeedsRealRanks, Place, run_virtual

MESH: list[Place] = [(tp, dp) for dp in range(3) for tp in range(2)]


def gather(axis: Axis, *values: float) -> Gather:
    degree = 2 if axis == "tp" else 3
    return Gather(axis, torch.tensor(values), (len(values),) * degree, "test")


def asking(*requests: Request) -> Program[list[list[Tensor]]]:
    """Make these requests in turn; return all answers."""
    answers = []
    for request in requests:
        answers.append((yield request))
    return answers


def test_each_axis_has_its_line_in_rank_order() -> None:
    programs = {(tp, dp): asking(gather("tp", tp, dp), gather("dp", tp, dp)) for tp, dp in MESH}
    for (tp, dp), (along_tp, along_dp) in run_virtual(programs).items():
        assert [part.tolist() for part in along_tp] == [[0, dp], [1, dp]]
        assert [part.tolist() for part in along_dp] == [[tp, 0], [tp, 1], [tp, 2]]


def test_two_addends_are_added_and_more_are_not() -> None:
    programs = {place: asking(AllReduce("tp", torch.tensor([10.0 * place[0] + place[1]]))) for place in MESH}
    assert {place: answer[0][0].tolist() for place, answer in run_virtual(programs).items()} == {
        (tp, dp): [10.0 + 2 * dp] for tp, dp in MESH
    }
    with pytest.raises(NeedsRealRanks, match="an all_reduce over 3 ranks has no order of its own"):
        run_virtual({place: asking(AllReduce("dp", torch.zeros(1))) for place in MESH})


def test_an_all_reduce_does_not_write_into_its_input() -> None:
    mine = torch.tensor([1.0])
    (answer,) = run_virtual({(0, 0): asking(AllReduce("tp", mine))})[0, 0]
    answer[0].add_(1)
    assert mine.tolist() == [1.0]


@pytest.mark.parametrize(
    "odd",
    [
        asking(gather("dp", 0.0)),
        asking(),
        asking(gather("tp", 0.0), gather("tp", 0.0)),
        asking(AllReduce("tp", torch.zeros(1))),
    ],
    ids=["another axis", "one request less", "one request more", "another kind"],
)
def test_ranks_out_of_step(odd: Program[Any]) -> None:
    programs: dict[Place, Program[Any]] = {(tp, 0): asking(gather("tp", 0.0)) for tp in range(2)}
    with pytest.raises(RuntimeError, match="virtual ranks out of step"):
        run_virtual(programs | {(1, 0): odd})


def test_an_error_of_a_rank_comes_through() -> None:
    def failing() -> Program[None]:
        yield gather("tp", 0.0)
        raise ZeroDivisionError("here")

    with pytest.raises(ZeroDivisionError, match="here"):
        run_virtual({(0, 0): failing(), (1, 0): failing()})
    with pytest.raises(RuntimeError, match=r"1 of 2 virtual ranks raised.*here"):
        run_virtual({(0, 0): asking(gather("tp", 0.0)), (1, 0): failing()})


def test_a_lone_real_rank_answers_itself() -> None:
    mine = torch.tensor([1.0, 2.0])
    answers = RealRanks().run(asking(Gather("tp", mine, (2,), "test"), AllReduce("dp", mine)))
    assert [[part.tolist() for part in answer] for answer in answers] == [[[1.0, 2.0]]] * 2


def test_groups_and_meshes_are_both_groups() -> None:
    class Mesh:
        def get_group(self) -> str:
            return "group"

    assert process_group(None) is None
    assert process_group(Mesh()) == "group"
