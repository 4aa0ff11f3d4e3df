"""Plans: which layouts, batches, seeds and planted faults, what is skipped, and what is refused."""

from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from grpo_contract import (
    ContractError,
    GRPOLossContract,
    GRPOVerifyError,
    InputError,
    LogitsDtype,
    ShardingError,
)
from harness.inputs.capture_header import FORMAT, CaptureHeader
from harness.inputs.safetensors_header import TensorEntry
from harness.planning.layouts import divisors, unfit
from harness.planning.listings import plan_text
from harness.planning.plan import make_plan
from harness.planning.planned import Plan
from harness.runs.request import plan_for
from harness.settings.batch_spec import BUILT_IN, CONTROL, contract_for, lengths
from harness.settings.request_error import RequestError
from harness.settings.run_config import RunConfig


@dataclass(frozen=True)
class StandIn:
    """A planted fault as the catalogue describes one."""

    name: str
    layout: tuple[int, int]
    kind: Literal["layout", "arithmetic", "disagreement"] = "layout"
    quantities: tuple[str, ...] = ("loss",)
    real_ranks_from: int | None = None


FAULTS = (
    StandIn("regrouped", (1, 2)),
    StandIn("order_dependent", (1, 4)),
    StandIn("doubled_tiles", (2, 1)),
    StandIn("bf16_sum", (1, 1), "arithmetic"),
    StandIn("beta_differs", (2, 1), "disagreement", ()),
)


def plan(config: RunConfig, **options: Any) -> Plan:
    keywords: dict[str, Any] = {"device": "cpu", "available_ranks": None, "faults": FAULTS} | options
    return make_plan(config, **keywords)


def layouts(result: Plan, batch: str = "seed") -> list[tuple[int, int]]:
    return [case.layout for case in result.cases if case.batch == batch and case.fault is None]


def header(name: str = "x", num_sequences: int = 2, columns: int = 64, **metadata: str) -> CaptureHeader:
    shape = (num_sequences, 4, columns)
    tensors = {each: TensorEntry("F16", shape) for each in ("policy_logits", "ref_logits")}
    meta = {"format": FORMAT, "group_boundaries": f"[0, {num_sequences}]"} | metadata
    return CaptureHeader(Path(f"{name}.safetensors"), tensors, meta)


def test_largest_degrees_give_all_divisors_with_the_baseline_first() -> None:
    result = plan(RunConfig(tp=4, dp=6, batch="seed", controls="off"))
    assert layouts(result)[0] == (1, 1)
    assert sorted(layouts(result)) == [(tp, dp) for tp in (1, 2, 4) for dp in (1, 2, 3, 6)]
    assert result.ranks == 24


def test_one_degree_alone() -> None:
    assert layouts(plan(RunConfig(tp=3, batch="seed"))) == [(1, 1), (3, 1)]


def test_without_degrees_every_layout_that_four_ranks_reach() -> None:
    expected = [(1, 1), (1, 2), (2, 1), (1, 3), (3, 1), (1, 4), (2, 2), (4, 1)]
    result = plan(RunConfig(controls="off"))
    assert [layouts(result, batch) for batch in ("seed", "long-1024", "long-4096")] == [expected] * 3
    assert result.ranks == 4


def test_an_explicit_list_stays_as_given() -> None:
    result = plan(RunConfig(layouts=("4x1", "1x3"), batch="seed", controls="off"))
    assert layouts(result) == [(4, 1), (1, 3)]


def test_cases_are_named_numbered_and_grouped() -> None:
    result = plan(
        RunConfig(tp=2, batch=("seed", "ragged"), seed=(0, 7), controls="off", repeat=3, op="pkg.mod:op")
    )
    assert [case.name for case in result.cases] == [
        *("seed/s0/1x1", "seed/s0/2x1", "seed/s7/1x1", "seed/s7/2x1"),
        *("ragged/s0/1x1", "ragged/s0/2x1", "ragged/s7/1x1", "ragged/s7/2x1"),
    ]
    assert {(case.op, case.expect, case.repeat) for case in result.cases} == {("pkg.mod:op", "match", 3)}


def test_planted_faults_come_last_on_a_batch_and_a_contract_of_their_own() -> None:
    config = RunConfig(tp=2, batch="seed", beta=0, kl="k1", tiles=8, dtype="bfloat16", seed=(5,), op="pkg.mod:op")
    result = plan(config)
    planted = [case for case in result.cases if case.fault]
    assert result.cases[-len(FAULTS) + 1 :] == tuple(planted)
    assert [case.name for case in planted] == [
        "fault/regrouped/1x2",
        "fault/doubled_tiles/2x1",
        "fault/bf16_sum/1x1",
        "fault/beta_differs/2x1",
    ]
    assert [case.expect for case in planted] == ["caught"] * 3 + ["refused"]
    assert result.notes[-1] == "planted fault order_dependent needs layout 1x4; this run has 2 ranks"
    assert {(case.op, case.batch, case.seed) for case in planted} == {("grpo_loss", "control", 0)}
    assert result.batches["control"].contract == contract_for(CONTROL, RunConfig())
    assert result.batches["seed"].contract.objective.beta == 0
    assert result.batches["seed"].contract.logprob.num_vocab_tiles == 8
    assert result.ranks == 2


def test_two_ranks_of_a_foreign_op_are_said_to_hide_an_order() -> None:
    def notes(**settings: Any) -> list[str]:
        found = plan(RunConfig(batch="seed", controls="off", **settings)).notes
        return [note for note in found if "one order of addition" in note]

    assert [note[:12] for note in notes(op="mine:op", tp=2, dp=2)] == ["two TP ranks", "two DP ranks"]
    assert [note[:12] for note in notes(op="mine:op", tp=4, dp=2)] == ["two DP ranks"]
    assert notes(tp=2, dp=2) == []


def test_the_matrix_runs_each_fault_at_every_larger_layout_for_the_record() -> None:
    result = plan(RunConfig(tp=2, dp=2, batch="seed", controls="matrix"))
    names = [case.name for case in result.cases if case.fault and case.expect == "any"]
    assert names == [
        "fault/regrouped/2x2",
        "fault/doubled_tiles/2x2",
        "fault/bf16_sum/1x2",
        "fault/bf16_sum/2x1",
        "fault/bf16_sum/2x2",
        "fault/beta_differs/2x2",
    ]


def test_controls_on_the_users_batches_prove_nothing_and_stand_beside_their_cases() -> None:
    result = plan(RunConfig(dp=2, batch="seed", seed=(0, 1), controls="batch"))
    own = [case for case in result.cases if case.fault and case.batch == "seed"]
    assert {case.expect for case in own} == {"any"}
    assert own[0].name == "seed/s0/regrouped/1x2"
    assert [key for key, _ in groupby(result.cases, key=lambda case: (case.batch, case.seed))] == [
        ("seed", 0),
        ("seed", 1),
        ("control", 0),
    ]


def test_no_controls() -> None:
    result = plan(RunConfig(controls="off"))
    assert "control" not in result.batches
    assert all(case.fault is None for case in result.cases)


def test_what_needs_more_devices_than_there_are_is_skipped() -> None:
    result = plan(RunConfig(tp=4, batch="seed"), device="cuda", available_ranks=2)
    skipped = {case.name: case.skip for case in result.cases if case.skip}
    assert skipped == {
        "seed/s0/4x1": "needs 4 devices, this machine has 2",
        "fault/order_dependent/1x4": "needs 4 devices, this machine has 2",
    }
    assert result.ranks == 2


def test_one_device_says_that_it_shows_little() -> None:
    result = plan(RunConfig(batch="seed", controls="off"), device="cuda", available_ranks=1)
    assert layouts(result) == [(1, 1)]
    assert result.notes == ("1x1 is the only layout: it shows that runs repeat, nothing about layouts",)


def test_layouts_nobody_asked_for_are_skipped_where_a_batch_is_too_small() -> None:
    result = plan(RunConfig(batch=("wide", "ragged"), controls="off"), device="cuda", available_ranks=10)
    skipped = {case.name: case.skip for case in result.cases if case.skip}
    reason = "{} DP ranks (expected 1 to 8, the number of sequences)"
    assert skipped == {f"wide/s0/1x{dp}": reason.format(dp) for dp in (9, 10)}


def test_many_ranks_on_few_cores_are_noted() -> None:
    assert plan(RunConfig(tp=4), cores=2).notes == ("4 ranks share 2 CPU cores: expect a slow run",)
    assert plan(RunConfig(tp=4), cores=4).notes == ()


def refusal(config: RunConfig, **options: Any) -> GRPOVerifyError:
    with pytest.raises(GRPOVerifyError) as caught:
        plan(config, **options)
    return caught.value


def messages(config: RunConfig, **options: Any) -> list[str]:
    return [str(problem) for problem in refusal(config, **options).problems]


def test_more_ranks_than_tiles_or_sequences_are_refused() -> None:
    config = RunConfig(tp=24, dp=2, batch=("seed", "ragged", "wide"))
    assert messages(config) == [
        "--tp: expected a TP degree of 1 to 16, the number of vocabulary tiles of batch ragged, got 24",
        "--tp: expected a TP degree of 1 to 19, the number of vocabulary tiles of batch wide, got 24",
    ]
    assert isinstance(refusal(config), ShardingError)
    assert messages(RunConfig(layouts=("1x9", "1x16"), batch="seed")) == [
        "--layouts: expected a DP degree of 1 to 8, the number of sequences of batch seed, got 9",
        "--layouts: expected a DP degree of 1 to 8, the number of sequences of batch seed, got 16",
    ]
    assert "batch long-1024" in messages(RunConfig(dp=16))[1]


def test_at_most_64_ranks_on_the_cpu() -> None:
    config = RunConfig(tp=16, dp=8, batch="seed")
    assert messages(config) == ["--tp --dp: expected at most 64 ranks on the CPU, got 128 (layout 16x8)"]
    assert plan(config, device="cuda", available_ranks=128).ranks == 128


def test_unknown_batches_come_with_everything_else() -> None:
    found = messages(RunConfig(batch=("sed", "gone.safetensors"), tp=99), captures={"gone.safetensors": _gone()})
    assert found == [
        "--tp: expected at most 64 ranks on the CPU, got 99 (layout 99x1)",
        "--batch: expected one of long, long-1024, long-4096, ragged, seed, small, wide, or a file ending in "
        ".safetensors (did you mean seed?), got sed",
        "gone.safetensors: expected a capture file, got no such file",
    ]


def _gone() -> InputError:
    from harness.inputs.capture_header import read_header

    with pytest.raises(InputError) as caught:
        read_header(Path("gone.safetensors"))
    return caught.value


def test_the_faults_batch_is_not_for_users() -> None:
    assert isinstance(refusal(RunConfig(batch="control")), RequestError)


def test_contract_problems_name_batch_and_flag() -> None:
    assert messages(RunConfig(batch=("seed", "ragged"), tiles=300)) == [
        "batch seed: --tiles: expected a number of tiles that leaves none empty over 1024 columns, such as 256, "
        "got 300",
        "batch ragged: --tiles: expected a number of tiles that leaves none empty over 256 columns, such as 256, "
        "got 300",
    ]


def test_a_capture_brings_its_defaults_and_a_flag_wins_with_a_note() -> None:
    stored = header(beta="0.1", clip_eps="0.3", temperature="0.7", kl_estimator="k2", real_vocab_size="60")
    config = RunConfig(
        batch="x.safetensors", beta=0.2, clip_eps_high=0.3, kl="k1", dtype="float32", seed=(1, 2), tp=2
    )
    result = plan(config, captures={"x.safetensors": stored})
    batch = result.batches["x"]
    assert batch.notes == (
        "beta 0.2 (--beta) replaces 0.1 of the capture",
        "kl_estimator k1 (--kl) replaces k2 of the capture",
        "logits are float16 as stored; --dtype is not for captures",
    )
    objective, logprob = batch.contract.objective, batch.contract.logprob
    assert (objective.clip_eps_low, objective.clip_eps_high, objective.temperature) == (0.3, 0.3, 0.7)
    assert (logprob.real_vocab_size, logprob.padded_vocab_size, logprob.dtype) == (
        60,
        64,
        LogitsDtype.FLOAT16,
    )
    assert [(case.name, case.seed) for case in result.cases[:2]] == [("x/1x1", None), ("x/2x1", None)]


def test_captures_of_one_name_are_told_apart() -> None:
    names = ("a/seed.safetensors", "a/x.safetensors", "b/x.safetensors")
    captures = {name: header(name.removesuffix(".safetensors")) for name in names}
    result = plan(RunConfig(batch=names, tp=2, controls="off"), captures=captures)
    assert list(result.batches) == ["a/seed.safetensors", "x", "b/x.safetensors"]


def test_singleton_groups_are_refused_by_the_contract() -> None:
    error = refusal(RunConfig(batch="x.safetensors"), captures={"x.safetensors": header(num_sequences=1)})
    assert isinstance(error, ContractError)
    assert str(error.problems[0]).startswith(
        "batch x.safetensors: geometry.group_boundaries[0]: expected at least 2"
    )
    config = RunConfig(batch="x.safetensors", advantage="mean_only")
    assert plan(config, captures={"x.safetensors": header(num_sequences=1)}).batches["x"]


def test_a_plan_survives_json() -> None:
    result = plan(
        RunConfig(batch=("seed", "x.safetensors"), backend="native"), captures={"x.safetensors": header()}
    )
    assert Plan.model_validate_json(result.model_dump_json()) == result


def test_a_plan_that_contradicts_itself_cannot_be_loaded() -> None:
    content = plan(RunConfig(batch="seed")).model_dump(mode="json")
    for change in ({"ranks": 1}, {"cases": content["cases"][1:]}, {"batches": {}}, {"schema_version": 2}):
        with pytest.raises(ValueError, match=r"more ranks|numbered|lacks|schema_version"):
            Plan.model_validate(content | change)


requests = st.fixed_dictionaries(
    {
        "tp": st.none() | st.integers(1, 16),
        "dp": st.none() | st.integers(1, 8),
        "batch": st.lists(st.sampled_from(["seed", "long", "ragged", "wide", "long-1024"]), min_size=1).map(tuple),
        "seed": st.lists(st.integers(0, 99), min_size=1, max_size=3).map(tuple),
        "controls": st.sampled_from(["on", "off", "batch"]),
        "repeat": st.integers(1, 5),
    }
)


@settings(max_examples=60, deadline=None)
@given(requests, st.none() | st.integers(1, 8))
def test_every_plan(fields: dict[str, Any], devices: int | None) -> None:
    config = RunConfig(**fields)
    device = "cpu" if devices is None else "cuda"
    try:
        result = plan(config, device=device, available_ranks=devices)
    except GRPOVerifyError as error:
        event(type(error).__name__)
        return
    live = [case for case in result.cases if case.skip is None]
    assert result.ranks == max((case.ranks for case in live), default=1)
    assert devices is None or result.ranks <= devices
    assert all(unfit(case.layout, result.batches[case.batch].contract) is None for case in live)
    assert len({case.name for case in result.cases}) == len(result.cases)
    groups = [key for key, _ in groupby(result.cases, key=lambda case: (case.batch, case.seed))]
    assert len(groups) == len(set(groups))
    assert live[0].layout == (1, 1)
    if config.tp or config.dp:
        allowed = {(tp, dp) for tp in divisors(config.tp or 1) for dp in divisors(config.dp or 1)}
        matching = [case for case in result.cases if case.expect == "match"]
        assert {case.layout for case in matching} == allowed
        assert len(matching) == len(allowed) * len(groups) - len(allowed) * (config.controls != "off")


def test_built_in_geometry() -> None:
    shapes = {
        name: (spec.num_sequences, spec.padded_seq_len, spec.real_vocab_size, spec.padded_vocab_size)
        for name, spec in BUILT_IN.items()
    }
    assert shapes == {
        "seed": (8, 32, 1000, 1024),
        "long-1024": (8, 1024, 29, 32),
        "long-4096": (8, 4096, 29, 32),
        "ragged": (12, 48, 250, 256),
        "small": (8, 32, 61, 64),
        "wide": (8, 8, 151936, 152064),
    }
    tiles = {name: contract_for(spec, RunConfig()).logprob.num_vocab_tiles for name, spec in BUILT_IN.items()}
    assert tiles == {"seed": 32, "long-1024": 16, "long-4096": 16, "ragged": 16, "small": 16, "wide": 19}


def test_contract_for_takes_what_was_given() -> None:
    contract = contract_for(BUILT_IN["seed"], RunConfig(normalizer="length_power", alpha=0.5, dtype="float16"))
    assert isinstance(contract, GRPOLossContract)
    assert (contract.reduction.alpha, contract.logprob.dtype) == (0.5, LogitsDtype.FLOAT16)


def test_lengths() -> None:
    assert lengths(BUILT_IN["seed"], 0) == (32, 30, 28, 26, 24, 22, 20, 18)
    assert lengths(BUILT_IN["wide"], 3) == (8, 8, 7, 7, 6, 6, 5, 5)
    assert lengths(CONTROL, 1) == (32,) * 8


@given(st.integers(0, 2**32 - 1))
def test_ragged_lengths_hold_one_empty_and_one_full_sequence(seed: int) -> None:
    found = lengths(BUILT_IN["ragged"], seed)
    assert len(found) == 12
    assert found.count(0) == 1
    assert 48 in found
    assert all(0 <= length <= 48 for length in found)
    assert found == lengths(BUILT_IN["ragged"], seed)


def test_ragged_lengths_are_the_same_everywhere() -> None:
    assert lengths(BUILT_IN["ragged"], 0) == (41, 5, 37, 8, 29, 34, 27, 0, 48, 14, 8, 42)


def test_one_rank_is_no_ranks() -> None:
    text = plan_text(plan_for(RunConfig(layouts=("1x1",), batch=("seed",), controls="off", device="cpu")))
    assert text.startswith("1 rank on cpu")
    assert "1 case to run" in text
    assert "1 ranks" not in text
