"""Who is blamed, in which words. The words are an interface."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.launching.blame import Death, blame_death, blame_failure, is_effect
from harness.launching.blame_hang import blame_hang, blame_stopped
from harness.launching.launch_outcome import LaunchOutcome, OutcomeKind
from harness.launching.stacks import collective, where
from harness.launching.status import CaseRef, Phase, RankError, RankStatus
from harness.runs.recheck import SecondLook, with_second_look

CASE = CaseRef(index=3, name="seed 2x2")
EARLIER = CaseRef(index=2, name="seed 1x2")

DUMP = """rank 1, process 77
Thread 0x00007f01 (most recent call first):
  File "/home/me/project/feed.py", line 3 in feed

Current thread 0x00007f02 (most recent call first):
  File "/usr/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 3300 in all_gather
  File "/home/me/project/ops.py", line 88 in gather tiles
  File "/home/me/project/worker.py", line 12 in main
  File "<frozen runpy>", line 88 in _run_code
"""


def at(rank: int, phase: Phase = Phase.FORWARD, step: int = 0, **more: Any) -> RankStatus:
    fields = {"case": CASE, "time": 0.0, **more}
    return RankStatus(rank=rank, pid=100 + rank, host="here", phase=phase, step=step, **fields)


def said(*statuses: RankStatus) -> dict[int, RankStatus]:
    return {status.rank: status for status in statuses}


def failed(rank: int, time: float, code: str, message: str) -> RankStatus:
    error = RankError(phase=Phase.FORWARD, code=code, message=message, traceback="")
    return at(rank, Phase.FAILED, time=time, error=error)


def test_the_rank_with_the_fewest_collectives_is_late() -> None:
    culprit = blame_hang(said(at(0, step=8), at(1, step=8), at(2, step=7), at(3, step=8)), 4)
    assert (culprit.ranks, culprit.phase, culprit.case) == ((2,), Phase.FORWARD, "seed 2x2")
    assert culprit.reason == (
        "rank 2 stopped answering in forward of case 'seed 2x2' after collective 7 "
        "while ranks 0, 1, 3 wait in collective 8"
    )


def test_a_stopped_rank_is_named_however_far_it_is() -> None:
    statuses = said(at(0, step=2), at(1, step=2), at(2, step=7), at(3, Phase.COMPARE, idle=True))
    culprit = blame_stopped(statuses, {3: "by a debugger"})
    assert (culprit.ranks, culprit.phase, culprit.case) == ((3,), Phase.COMPARE, "seed 2x2")
    assert culprit.reason == (
        "rank 3 is stopped (by a debugger), in compare of case 'seed 2x2' "
        "while ranks 0, 1 wait in collective 2 and rank 2 waits in collective 7"
    )
    assert blame_stopped(statuses, {0: "a", 1: "a"}).reason.startswith("ranks 0, 1 are stopped (a), in forward of")


def test_a_frame_is_told() -> None:
    statuses = said(at(0, step=1), at(1, step=0))
    assert blame_hang(statuses, 2, {0: "no", 1: "load (user.py:9)"}).reason.endswith(
        "before its first collective while rank 0 waits in collective 1; it was at load (user.py:9)"
    )


def test_all_equal_means_all_stopped() -> None:
    culprit = blame_hang(said(at(0, step=5), at(1, step=5)), 2, {0: "a (x.py:1)", 1: "b (x.py:2)"})
    assert culprit.ranks == (0, 1)
    assert culprit.reason == (
        "all ranks (0, 1) stopped answering in forward of case 'seed 2x2' after collective 5; "
        "rank 0 was at a (x.py:1), rank 1 was at b (x.py:2)"
    )


FRAMES = {0: "loss (op.py:14)", 1: "read (op.py:9)", 2: "loss (op.py:14)"}
EVEN = (at(0), at(1), at(2))


def test_who_waits_in_a_collective_is_a_victim_of_who_does_not() -> None:
    culprit = blame_hang(said(*EVEN), 3, FRAMES, {0: "all_reduce", 2: "all_reduce"})
    assert (culprit.ranks, culprit.phase, culprit.case) == ((1,), Phase.FORWARD, "seed 2x2")
    assert culprit.reason == (
        "rank 1 stopped answering in forward of case 'seed 2x2', in no collective, "
        "while ranks 0, 2 wait in all_reduce at loss (op.py:14); it was at read (op.py:9)"
    )


def test_a_rank_that_went_on_without_the_others_is_no_victim() -> None:
    statuses = said(at(0), at(1, Phase.BACKWARD), at(2))
    culprit = blame_hang(statuses, 3, FRAMES, {0: "all_reduce", 2: "all_reduce"})
    assert (culprit.ranks, culprit.phase) == ((1,), Phase.BACKWARD)


def test_the_one_in_another_collective_is_at_fault() -> None:
    culprit = blame_hang(said(*EVEN), 3, FRAMES, {0: "all_reduce", 1: "all_gather", 2: "all_reduce"})
    assert culprit.ranks == (1,)
    assert culprit.reason == (
        "rank 1 stopped answering in forward of case 'seed 2x2', in all_gather at read (op.py:9), "
        "while ranks 0, 2 wait in all_reduce at loss (op.py:14)"
    )


@pytest.mark.parametrize(
    ("frames", "waiting"),
    [
        (FRAMES, {}),
        (FRAMES, dict.fromkeys(range(3), "all_reduce")),
        ({0: FRAMES[0], 2: FRAMES[2]}, {0: "all_reduce", 2: "all_reduce"}),
    ],
    ids=["nobody waits", "all wait for one", "a rank was not seen"],
)
def test_stacks_that_tell_nothing_leave_all_to_blame(frames: dict[int, str], waiting: dict[int, str]) -> None:
    assert blame_hang(said(*EVEN), 3, frames, waiting).ranks == (0, 1, 2)


def test_two_in_two_collectives_are_both_named() -> None:
    assert blame_hang(said(*EVEN[:2]), 2, FRAMES, {0: "all_reduce", 1: "all_gather"}).ranks == (0, 1)


def test_ranks_without_a_part_are_not_asked_for_their_stacks() -> None:
    idle = at(2, Phase.COMPARE, idle=True)
    assert blame_hang(said(at(0), at(1), idle), 3, FRAMES, {0: "all_reduce"}).ranks == (1,)


def test_ranks_that_only_look_on_are_blamed_without_their_stacks() -> None:
    done = at(0, Phase.DONE)
    idle = (at(1, Phase.COMPARE, idle=True), at(2, Phase.COMPARE, idle=True))
    assert blame_hang(said(done, *idle), 3, FRAMES, {1: "all_gather"}).ranks == (1, 2)


def test_a_rank_that_measures_is_behind_those_that_wait_for_it() -> None:
    waiting = (at(0, Phase.COMPARE, step=3), at(1, Phase.COMPARE, step=3), at(2, Phase.COMPARE, step=1, idle=True))
    frames = {**FRAMES, 3: "measure (power.py:50)"}
    culprit = blame_hang(said(*waiting, at(3, Phase.COMPARE)), 4, frames, dict.fromkeys(range(3), "all_gather"))
    assert culprit.ranks == (3,)
    assert culprit.reason.endswith("; it was at measure (power.py:50)")


def test_counts_still_decide_first() -> None:
    statuses = said(at(0, step=6), at(1, step=5), at(2, step=7))
    assert blame_hang(statuses, 3, FRAMES, {0: "all_gather", 2: "all_gather"}).reason.startswith(
        "rank 1 stopped answering in forward of case 'seed 2x2' after collective 5 while rank 0 waits in coll"
    )


def test_a_second_look_may_blame_fewer() -> None:
    first = LaunchOutcome(OutcomeKind.HUNG, 1.0, blame_hang(said(*EVEN), 3))
    for ranks, blamed in (((1,), (1,)), ((), (0, 1, 2)), ((0, 1, 2), (0, 1, 2)), ((3,), (0, 1, 2))):
        culprit = with_second_look(first, SecondLook("once more", ranks=ranks)).culprit
        assert culprit is not None
        assert culprit.ranks == blamed
        assert culprit.reason.endswith("; once more")


def test_an_earlier_case_is_behind_whatever_the_count() -> None:
    culprit = blame_hang(said(at(0, step=2), at(1, step=90, case=EARLIER)), 2)
    assert (culprit.ranks, culprit.case) == ((1,), "seed 1x2")


def test_the_phase_decides_between_equal_counts() -> None:
    culprit = blame_hang(said(at(0, Phase.BACKWARD, 4), at(1, Phase.FORWARD, 4)), 2)
    assert culprit.ranks == (1,)


def test_counts_begin_with_the_case_for_ranks_that_sat_out_others() -> None:
    statuses = said(at(0, step=30, case_step=27), at(1, step=6, case_step=2))
    assert blame_hang(statuses, 2).ranks == (0,)


def test_a_rank_without_a_part_is_no_culprit() -> None:
    idle = at(2, Phase.COMPARE, step=1, idle=True)
    culprit = blame_hang(said(at(0, step=5), at(1, step=4), idle), 3)
    assert culprit.ranks == (1,)
    assert culprit.reason.endswith("while rank 0 waits in collective 5 and rank 2 waits without a part in it")


@pytest.mark.parametrize(
    ("phase", "words"), [(Phase.START, "rank 1 did not get ready"), (Phase.READY, "rank 1 stopped answering in")]
)
def test_before_the_first_case(phase: Phase, words: str) -> None:
    assert blame_hang(said(at(0), at(1, phase, case=None)), 2).reason.startswith(words)


def test_a_rank_that_said_nothing_is_behind_all() -> None:
    culprit = blame_hang(said(at(0, Phase.READY, case=None)), 2)
    assert (culprit.ranks, culprit.phase) == ((1,), Phase.START)
    assert culprit.reason == "rank 1 never reported that it started while rank 0 waits in ready"


def test_ranks_that_do_not_end() -> None:
    culprit = blame_hang(said(at(0, Phase.DONE), at(1, Phase.DONE)), 2)
    assert culprit.reason == "all ranks (0, 1) did not end after being done"


def test_the_first_death_wins() -> None:
    culprit = blame_death(said(at(0), at(1), at(2)), [Death(2, -9), Death(0, -6)], 3)
    assert culprit.reason == "rank 2 died in forward of case 'seed 2x2' (signal 9, SIGKILL)"


@pytest.mark.parametrize("victim", [Death(0, -15), Death(0, -15, closed=True), Death(0, None, closed=True)])
def test_a_victim_seen_first_is_not_the_culprit(victim: Death) -> None:
    assert blame_death(said(at(0), at(1)), [victim, Death(1, 3)], 2).ranks == (1,)
    assert blame_death(said(at(0), at(1)), [Death(1, 3), victim], 2).ranks == (1,)


def test_a_lonely_sigterm_is_the_cause() -> None:
    deaths = [Death(0, -15, closed=True), Death(1, -15)]
    assert blame_death(said(at(0), at(1)), deaths, 2).reason.endswith("(signal 15, SIGTERM)")


def test_when_all_are_victims_the_silent_rank_is_to_blame() -> None:
    culprit = blame_death(said(at(0)), [Death(0, -15, closed=True)], 2)
    assert culprit.reason == "rank 1 ended before reporting that it started"


def test_an_unknown_cause_is_not_made_up() -> None:
    assert blame_death(said(at(0)), [Death(0, None)], 1).reason == "rank 0 died in forward of case 'seed 2x2'"
    left = "rank 0 died in {} (exit status 0), left of its own accord, most likely in {} of the op"
    in_call = blame_death(said(at(0)), [Death(1, -15), Death(0, 0)], 1).reason
    assert in_call == left.format("forward of case 'seed 2x2'", "a call")
    in_import = blame_death(said(at(0, Phase.START, case=None)), [Death(0, 0)], 1).reason
    assert in_import == left.format("phase start", "the import")
    assert "signal 99, unknown" in blame_death(said(at(0)), [Death(0, -99)], 1).reason


def test_the_earliest_error_is_the_cause() -> None:
    statuses = said(failed(0, 2.0, "RuntimeError", "Connection closed"), failed(1, 1.0, "input", "bad id\nmore"))
    culprit = blame_failure(statuses)
    assert (culprit.ranks, culprit.phase) == ((1,), Phase.FORWARD)
    assert culprit.reason == "rank 1 failed in forward of case 'seed 2x2': bad id"


def test_the_same_error_everywhere_is_told_once() -> None:
    statuses = said(failed(0, 2.0, "preflight", "beta differs"), failed(1, 1.0, "preflight", "beta differs"))
    assert blame_failure(statuses).reason == "every rank failed in forward of case 'seed 2x2': beta differs"


def test_an_error_without_words_goes_by_its_code() -> None:
    assert blame_failure(said(failed(0, 1.0, "KeyError", ""), at(1))).reason.endswith("'seed 2x2': KeyError")


def test_a_lost_connection_is_never_the_cause() -> None:
    statuses = said(failed(0, 1.0, "RuntimeError", "Read error: Connection reset by peer"),
                    failed(1, 2.0, "RuntimeError", "out of range"))  # fmt: skip
    culprit = blame_failure(statuses)
    assert culprit.ranks == (1,)
    assert culprit.reason.endswith("RuntimeError: out of range")


@pytest.mark.parametrize("why", ["crashing", "hanging or bugs in the application"])
def test_what_gloo_says_of_a_remote_worker_is_an_effect(why: str) -> None:
    words = f"[pair.cc:1] This is typically caused by a remote worker {why}. Check the logs of the remote worker."
    assert is_effect(failed(0, 1.0, "RuntimeError", words))


def test_our_own_words_about_sockets_are_no_effect() -> None:
    assert not is_effect(failed(0, 1.0, "input", "socket timed out"))
    assert is_effect(failed(0, 1.0, "DistNetworkError", "socket timed out"))


def test_a_rank_that_refuses_alone_is_named_though_it_is_ahead() -> None:
    alone = at(1, Phase.COMPARE, step=1, refusal="invalid input: rewards[0]: nan\nmore")
    culprit = blame_hang(said(at(0, step=1), alone, at(2, step=1)), 3)
    assert culprit.ranks == (1,)
    assert culprit.reason == (
        "rank 1 alone refused case 'seed 2x2' while ranks 0, 2 wait in collective 1: "
        "invalid input: rewards[0]: nan"
    )
    everyone = said(*(at(rank, Phase.COMPARE, step=1 + rank, refusal="no") for rank in range(3)))
    assert blame_hang(everyone, 3).ranks == (0,)


def test_where_names_the_users_own_frame() -> None:
    assert where(DUMP) == "gather tiles (ops.py:88)"


def test_where_falls_back_to_the_innermost_frame() -> None:
    lines = [line for line in DUMP.splitlines(keepends=True) if "/home/me/" not in line]
    assert where("".join(lines)) == "all_gather (distributed_c10d.py:3300)"
    assert where("rank 1, process 77\n") is None


def test_a_stack_says_in_which_collective_it_is(tmp_path: Path) -> None:
    assert collective(DUMP) == "all_gather"
    assert collective(DUMP.replace("distributed_c10d", "c10d_logger").replace("all_gather", "wrapper")) is None
    own = tmp_path / "own.py"
    own.write_text("work = start()\nwork.wait()\nwork = more()\n")
    for line, found in ((2, "wait"), (3, None)):
        assert (
            collective(f'Current thread 0x1 (most recent call first):\n  File "{own}", line {line} in f\n')
            == found
        )
    assert collective("rank 1, process 77\n") is None
