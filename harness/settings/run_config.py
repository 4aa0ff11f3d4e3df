"""The run configuration: one frozen model behind the flags, `[tool.grpo-verify]` and `GRPO_VERIFY_*`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, PrivateAttr, ValidationError

from grpo_contract import (
    AdvantageKind,
    KLEstimator,
    LogitsDtype,
    Problem,
    SequenceDenominator,
    StdEpsMode,
    TokenNormalizer,
)
from harness.settings.config_problems import contract_problems, from_pydantic
from harness.settings.layout_text import layout_of
from harness.settings.request_error import RequestError
from harness.settings.setting_names import CONTRACT_NAMES, flag_name
from harness.settings.setting_types import (
    Batches,
    Controls,
    Count,
    Degree,
    Folder,
    Formats,
    Layouts,
    Number,
    OpName,
    Seconds,
    Seeds,
    Sweeps,
    Word,
    setting,
)


class RunConfig(BaseModel):
    """Everything a run can be told. Construction raises one RequestError with every problem.

    A contract field that is None was not given: the batch's own value, or the contract's default, holds.
    `origins` says where each given value came from (a flag, a variable, a key of a file), `standing` holds what
    variables and files say, as written, also where a flag says something else.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, str_strip_whitespace=True)

    tp: Degree | None = setting(None, "largest tensor-parallel degree; its divisors are run too")
    dp: Degree | None = setting(None, "largest data-parallel degree; its divisors are run too")
    layouts: Layouts = setting((), "exactly these TPxDP layouts, such as 4x1,1x4, in place of --tp and --dp")
    virtual: bool = setting(False, "all ranks of a layout in one process, up to TP 64 x DP 512")
    ranks_per_device: Degree | None = setting(
        None, "ranks that share a GPU; by default as few as the degrees need"
    )
    shared_transport: Literal["gloo", "nccl"] = setting(
        "gloo",
        "what carries the tensors of ranks that share a GPU; nccl needs NCCL 2.30, and is experimental there",
    )
    op: OpName = setting("grpo_loss", "the loss to verify: a registered name or package.module:attribute")
    backend: Word | None = setting(None, "implementation of the op; without it the best that is available")
    batch: Batches = setting(
        ("seed", "long"), "built-in batch, or a capture file ending in .safetensors; repeat or separate by commas"
    )
    device: Literal["auto", "cpu", "cuda"] = setting("auto", "where the loss runs")
    dtype: LogitsDtype = setting(LogitsDtype.FLOAT32, "logits of built-in batches")
    sweep: Sweeps = setting(
        (), "multiplies the built-in batches: seq_len=32,4096, groups=straddle,aligned, raggedness=..., or default"
    )
    seed: Seeds = setting((0,), "seed of built-in batches; repeat or separate by commas")
    normalizer: TokenNormalizer | None = setting(None, "what the token terms are divided by")
    fixed_constant: Number | None = setting(None, "divisor of the fixed_constant normalizer")
    alpha: Number | None = setting(None, "exponent of the length_power normalizer")
    sequence_denominator: SequenceDenominator | None = setting(
        None, "sequences that per_sequence_then_mean averages over"
    )
    beta: Number | None = setting(None, "weight of the KL to the reference")
    clip_eps_low: Number | None = setting(None, "the ratio is clipped below at 1 - this")
    clip_eps_high: Number | None = setting(None, "the ratio is clipped above at 1 + this")
    kl: KLEstimator | None = setting(None, "estimator of the KL")
    temperature: Number | None = setting(None, "divides the logits before the softmax")
    advantage: AdvantageKind | None = setting(None, "how the rewards of a group become advantages")
    std_eps: Number | None = setting(None, "keeps the advantage's divisor from zero")
    std_eps_mode: StdEpsMode | None = setting(None, "where --std-eps enters the divisor")
    tiles: Count | None = setting(None, "vocabulary tiles of the fixed summation tree")
    controls: Controls = setting(
        "on",
        "planted faults, on a batch of their own; batch: on the chosen batches too; matrix: at every layout too",
    )
    repeat: Count = setting(2, "runs of each candidate, which must agree bit for bit")
    stress: bool = setting(False, "another timing of threads and streams for each repeat")
    timeout: Seconds = setting(120.0, "seconds without progress before ranks are ended")
    dry_run: bool = setting(False, "print the plan, with what is skipped and why, and stop")
    out: Folder | None = setting(None, "folder that keeps the report and the logs")
    resume: Folder | None = setting(None, "go on with the interrupted run in this folder")
    format: Formats = setting(
        "terminal", "format of the report; further ones, after commas, are written into --out"
    )
    quiet: bool = setting(False, "no progress, and only the outcome in the report")
    color: Literal["auto", "always", "never"] = setting("auto", "colours in the report")

    _origins: dict[str, str] = PrivateAttr(default_factory=dict)
    _standing: dict[str, Any] = PrivateAttr(default_factory=dict)

    def __init__(
        self,
        *,
        origins: Mapping[str, str] | None = None,
        standing: Mapping[str, Any] | None = None,
        **values: Any,
    ) -> None:
        places = dict(origins or {name: flag_name(name) for name in values})
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise RequestError([*from_pydantic(error, places), *_rest(values, error, places)]) from None
        self._origins, self._standing = places, dict(standing or {})
        problems = [
            *self._layout_problems(),
            *self._format_problems(),
            *contract_problems(self.contract_fields(), self.where),
        ]
        if problems:
            raise RequestError(problems)

    def where(self, name: str) -> str:
        """Where the value of setting `name` came from; its flag when nobody gave it."""
        return self._origins.get(name, flag_name(name))

    def is_given(self, name: str) -> bool:
        """Whether anybody gave setting `name`."""
        return name in self._origins

    @property
    def standing(self) -> dict[str, Any]:
        """Settings of variables and files, as they are written there."""
        return dict(self._standing)

    def given_values(self) -> dict[str, Any]:
        """The settings that were given, as JSON values."""
        return {name: value for name, value in self.model_dump(mode="json").items() if self.is_given(name)}

    @property
    def chosen_layouts(self) -> tuple[tuple[int, int], ...]:
        """The layouts of --layouts as (tp, dp)."""
        return tuple(layout_of(each) for each in self.layouts)

    def contract_fields(self) -> dict[str, Any]:
        """The contract fields that were given, under the contract's names (tiles apart)."""
        values = {contract: getattr(self, name) for name, contract in CONTRACT_NAMES.items()}
        return {name: value for name, value in values.items() if value is not None}

    @property
    def formats(self) -> tuple[str, ...]:
        """The formats of the report; the first one is the answer, the others are files of --out."""
        return tuple(self.format.split(","))

    def _format_problems(self) -> list[Problem]:
        if len(self.formats) == 1 or self.out is not None:
            return []
        expected = f"a folder for the formats after the first ({', '.join(self.formats[1:])})"
        return [Problem("request.out", self.where("out"), expected, "nothing")]

    def _layout_problems(self) -> list[Problem]:
        given = [name for name in ("tp", "dp") if getattr(self, name) is not None]
        if not self.layouts or not given:
            return []
        expected = f"nothing ({' and '.join(map(self.where, given))} given)"
        return [Problem("request.layouts", self.where("layouts"), expected, ",".join(self.layouts))]


def _rest(values: dict[str, Any], error: ValidationError, places: dict[str, str]) -> tuple[Problem, ...]:
    """What is wrong between the settings that pydantic did not refuse."""
    refused = {str(item["loc"][0]) for item in error.errors() if item["loc"]}
    if "normalizer" in refused:  # which fields belong to it is unknown
        refused |= {"fixed_constant", "alpha", "sequence_denominator"}
    told = {places.get(name, flag_name(name)) for name in refused}
    try:
        RunConfig(origins=places, **{name: value for name, value in values.items() if name not in refused})
    except RequestError as rest:
        return tuple(problem for problem in rest.problems if problem.where not in told)
    return ()
