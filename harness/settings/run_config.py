"""The run configuration: one frozen model behind the flags, `[tool.grpo-verify]` and `GRPO_VERIFY_*`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationError,
)

from grpo_contract import (
    AdvantageKind,
    GRPOVerifyError,
    KLEstimator,
    LogitsDtype,
    Problem,
    SequenceDenominator,
    StdEpsMode,
    TokenNormalizer,
)
from harness.settings.config_problems import contract_problems, from_pydantic
from harness.settings.sweep_axes import parse as parse_sweep
from reports.formats import RENDERERS

OP_PATTERN = re.compile(r"[A-Za-z_][\w-]*|[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_LAYOUT_PATTERN = re.compile(r"([1-9]\d{0,4})x([1-9]\d{0,4})")
MOST_RANKS = 65536
MOST_COUNTED = 1_000_000
"""The bound of every other count, and of a time in seconds: far beyond use, and no overflow anywhere."""
CONTRACT_NAMES = {
    "normalizer": "token_normalizer",
    "fixed_constant": "fixed_constant",
    "alpha": "alpha",
    "sequence_denominator": "sequence_denominator",
    "beta": "beta",
    "clip_eps_low": "clip_eps_low",
    "clip_eps_high": "clip_eps_high",
    "kl": "kl_estimator",
    "temperature": "temperature",
    "advantage": "advantage",
    "std_eps": "std_eps",
    "std_eps_mode": "std_eps_mode",
}
"""Settings that are fields of a loss contract, with their names there."""


class RequestError(GRPOVerifyError):
    """A request that cannot be run: flags, configuration, names or paths."""

    code = "request"
    title = "invalid request"


def _listed(value: object) -> object:
    """Comma-separated text, alone or inside a list, as a tuple without repeats."""
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, list | tuple):
        return value
    split = [part for each in value for part in (each.split(",") if isinstance(each, str) else [each])]
    return tuple(dict.fromkeys(part.strip() if isinstance(part, str) else part for part in split))


def _many(value: object) -> object:
    """One text or several, commas kept, as a tuple without repeats."""
    return tuple(dict.fromkeys([value] if isinstance(value, str) else value)) if value else ()  # type: ignore[call-overload]


def _sweep(value: str) -> str:
    parse_sweep(value)
    return value


def _one_of(value: object) -> object:
    return ("off", "on")[value] if isinstance(value, bool) else value


def layout_of(text: str) -> tuple[int, int]:
    """The (tp, dp) of a layout written TxD. Raises ValueError."""
    match = _LAYOUT_PATTERN.fullmatch(text.strip().lower())
    if match is None or max(map(int, match.groups())) > MOST_RANKS:
        raise ValueError(f"layouts written TxD, such as 4x1 (TP degree x DP degree, both from 1 to {MOST_RANKS})")
    tp, dp = match.groups()
    return int(tp), int(dp)


def _layout(value: str) -> str:
    layout_of(value)
    return value.lower()


def _op(value: str) -> str:
    if not OP_PATTERN.fullmatch(value):
        raise ValueError("a registered name, such as grpo_loss, or package.module:attribute")
    return value


def _named(value: object) -> object:
    if value == "":
        raise ValueError("a path")  # it would be taken for the current folder
    return value


def _formats(value: str) -> str:
    names = list(dict.fromkeys(part.strip() for part in value.split(",")))
    if not set(names) <= set(RENDERERS):
        raise ValueError(f"one of {', '.join(RENDERERS)}, or several with commas between them")
    return ",".join(names)


NoBool = BeforeValidator(lambda value: f"{value}".lower() if isinstance(value, bool) else value)
Count = Annotated[int, NoBool, Field(ge=1, le=MOST_COUNTED)]
Degree = Annotated[int, NoBool, Field(ge=1, le=MOST_RANKS)]
Number = Annotated[float, NoBool]
Seed = Annotated[int, NoBool, Field(ge=0, le=2**32 - 1)]
Folder = Annotated[Path, BeforeValidator(_named)]
Word = Annotated[str, Field(min_length=1)]
Layout = Annotated[str, AfterValidator(_layout)]


def _setting(default: Any, about: str) -> Any:
    return Field(default=default, description=about)


class RunConfig(BaseModel):
    """Everything a run can be told. Construction raises one RequestError with every problem.

    A contract field that is None was not given: the batch's own value, or the contract's default, holds.
    `origins` says where each given value came from (a flag, a variable, a key of a file).
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, str_strip_whitespace=True)

    tp: Degree | None = _setting(None, "largest tensor-parallel degree; its divisors are run too")
    dp: Degree | None = _setting(None, "largest data-parallel degree; its divisors are run too")
    layouts: Annotated[tuple[Layout, ...], BeforeValidator(_listed)] = _setting(
        (), "exactly these TPxDP layouts, such as 4x1,1x4, in place of --tp and --dp"
    )
    virtual: bool = _setting(False, "all ranks of a layout in one process, up to TP 64 x DP 512")
    ranks_per_device: Degree | None = _setting(
        None, "ranks that share a GPU; by default as few as the degrees need"
    )
    shared_transport: Literal["gloo", "nccl"] = _setting(
        "gloo",
        "what carries the tensors of ranks that share a GPU; nccl needs NCCL 2.30, and is experimental there",
    )
    op: Annotated[str, AfterValidator(_op)] = _setting(
        "grpo_loss", "the loss to verify: a registered name or package.module:attribute"
    )
    backend: Word | None = _setting(None, "implementation of the op; without it the best that is available")
    batch: Annotated[tuple[Word, ...], BeforeValidator(_listed), Field(min_length=1)] = _setting(
        ("seed", "long"), "built-in batch, or a capture file ending in .safetensors; repeat or separate by commas"
    )
    device: Literal["auto", "cpu", "cuda"] = _setting("auto", "where the loss runs")
    dtype: LogitsDtype = _setting(LogitsDtype.FLOAT32, "logits of built-in batches")
    sweep: Annotated[tuple[Annotated[str, AfterValidator(_sweep)], ...], BeforeValidator(_many)] = _setting(
        (), "multiplies the built-in batches: seq_len=32,4096, groups=straddle,aligned, raggedness=..., or default"
    )
    seed: Annotated[tuple[Seed, ...], BeforeValidator(_listed), Field(min_length=1)] = _setting(
        (0,), "seed of built-in batches; repeat or separate by commas"
    )
    normalizer: TokenNormalizer | None = _setting(None, "what the token terms are divided by")
    fixed_constant: Number | None = _setting(None, "divisor of the fixed_constant normalizer")
    alpha: Number | None = _setting(None, "exponent of the length_power normalizer")
    sequence_denominator: SequenceDenominator | None = _setting(
        None, "sequences that per_sequence_then_mean averages over"
    )
    beta: Number | None = _setting(None, "weight of the KL to the reference")
    clip_eps_low: Number | None = _setting(None, "the ratio is clipped below at 1 - this")
    clip_eps_high: Number | None = _setting(None, "the ratio is clipped above at 1 + this")
    kl: KLEstimator | None = _setting(None, "estimator of the KL")
    temperature: Number | None = _setting(None, "divides the logits before the softmax")
    advantage: AdvantageKind | None = _setting(None, "how the rewards of a group become advantages")
    std_eps: Number | None = _setting(None, "keeps the advantage's divisor from zero")
    std_eps_mode: StdEpsMode | None = _setting(None, "where --std-eps enters the divisor")
    tiles: Count | None = _setting(None, "vocabulary tiles of the fixed summation tree")
    controls: Annotated[Literal["on", "off", "batch", "matrix"], BeforeValidator(_one_of)] = _setting(
        "on",
        "planted faults, on a batch of their own; batch: on the chosen batches too; matrix: at every layout too",
    )
    repeat: Count = _setting(2, "runs of each candidate, which must agree bit for bit")
    stress: bool = _setting(False, "another timing of threads and streams for each repeat")
    timeout: Annotated[Number, Field(gt=0, le=MOST_COUNTED)] = _setting(
        120.0, "seconds without progress before ranks are ended"
    )
    dry_run: bool = _setting(False, "print the plan, with what is skipped and why, and stop")
    out: Folder | None = _setting(None, "folder that keeps the report and the logs")
    resume: Folder | None = _setting(None, "go on with the interrupted run in this folder")
    format: Annotated[str, AfterValidator(_formats)] = _setting(
        "terminal", "format of the report; further ones, after commas, are written into --out"
    )
    quiet: bool = _setting(False, "no progress, and only the outcome in the report")
    color: Literal["auto", "always", "never"] = _setting("auto", "colours in the report")

    _origins: dict[str, str] = PrivateAttr(default_factory=dict)

    def __init__(self, *, origins: Mapping[str, str] | None = None, **values: Any) -> None:
        places = dict(origins or {name: flag_name(name) for name in values})
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise RequestError([*from_pydantic(error, places), *_rest(values, error, places)]) from None
        self._origins = places
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


def flag_name(name: str) -> str:
    """The flag of a setting."""
    return f"--{name.replace('_', '-')}"


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
