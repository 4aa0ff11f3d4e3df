"""The settings of `grpo-verify train`: one frozen model behind its flags. Never imports torch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from grpo_contract import Problem, ReductionSpec, TokenNormalizer
from harness.settings.config_problems import from_pydantic, relocated
from harness.settings.layout_text import MOST_RANKS
from harness.settings.request_error import RequestError
from harness.settings.setting_names import flag_name
from harness.settings.setting_types import MOST_COUNTED, Folder, setting
from harness.settings.source import Source
from reports.formats import RENDERERS

LANGUAGE_MODEL_ONLY = ("model", "block", "samples", "answer_tokens", "allocator")
UPDATES = {"tiny": 100, "language-model": 2}


def _format(value: str) -> str:
    if value not in RENDERERS:
        raise ValueError(f"one of {', '.join(RENDERERS)}")
    return value


Count = Annotated[int, Field(ge=1, le=MOST_COUNTED)]
Degree = Annotated[int, Field(ge=1, le=MOST_RANKS)]


class TrainSettings(BaseModel):
    """What to train, over how many ranks, and how to report."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    dp: Degree = setting(2, "largest DP degree; all its divisors are compared with one rank")
    workload: Literal["tiny", "language-model"] = setting("tiny", "what is trained")
    updates: Count | None = setting(None, "updates of a run; by default 100 (tiny) or 2 (language-model)")
    seed: Annotated[int, Field(ge=0, le=2**32 - 1)] = setting(0, "seed of all sampling")
    combine: Literal["fixed_order", "all_reduce"] = setting("fixed_order", "how gradients of ranks become one")
    micro_batch: Count | None = setting(None, "sequences computed at a time on a rank; whole blocks")
    block: Count = setting(1, "language-model: sequences of one forward, whose shape never changes")
    normalizer: TokenNormalizer | None = setting(None, "what the token terms are divided by")
    alpha: float | None = setting(None, "exponent of the length_power normalizer")
    fixed_constant: float | None = setting(None, "divisor of the fixed_constant normalizer")
    model: str | None = setting(None, "language-model: a folder, a GGUF file, or a hub name")
    samples: Count = setting(8, "language-model: samples of a prompt under the uniform allocator")
    answer_tokens: Count = setting(1, "language-model: longest answer, which earns 1 if it begins with the word")
    allocator: Literal["uniform", "vigor"] = setting("uniform", "language-model: who gets the rollouts")
    device: Literal["auto", "cpu", "cuda"] = setting("cpu", "where the ranks compute")
    ranks_per_device: Degree | None = setting(
        None, "ranks that share a GPU, over gloo; by default as few as the degree needs"
    )
    controls: Literal["on", "off"] = setting("on", "usual mistakes of trainers, which must be seen")
    timeout: Annotated[float, Field(gt=0, le=MOST_COUNTED)] = setting(
        300.0, "seconds without progress before ranks are ended"
    )
    out: Folder | None = setting(None, "folder that keeps the report and the logs")
    format: Annotated[str, AfterValidator(_format)] = setting("terminal", "format of the report")
    quiet: bool = setting(False, "no progress, and only the outcome in the report")
    color: Literal["auto", "always", "never"] = setting("auto", "colours in the report")

    @classmethod
    def of(cls, source: Source) -> TrainSettings:
        """Settings as `source` gives them. Raises one RequestError with every problem."""
        try:
            settings = cls(**source.values)
        except ValidationError as error:
            raise RequestError([*source.problems, *from_pydantic(error, source.places)]) from None
        problems = [*source.problems, *settings.problems(), *settings.unused(source.values)]
        if problems:
            raise RequestError(problems)
        return settings

    def where(self, name: str) -> str:
        """Where the value of a setting came from: its flag."""
        return flag_name(name)

    def problems(self) -> list[Problem]:
        """What does not fit together."""
        found = [relocated(each, flag_name) for each in ReductionSpec.problems(self.reduction_fields())]
        if self.workload == "language-model" and self.model is None:
            expected = "a folder, a GGUF file or a hub name (--workload is language-model)"
            found.append(Problem("request.model", "--model", expected, "nothing"))
        if self.micro_batch is not None and self.micro_batch % self.block:
            expected = f"a multiple of --block {self.block}"
            found.append(Problem("request.micro_batch", "--micro-batch", expected, str(self.micro_batch)))
        return found

    def unused(self, given: Iterable[str]) -> list[Problem]:
        """Settings that were given and that this workload does not have."""
        if self.workload == "language-model":
            return []
        expected = f"nothing (it belongs to language-model; --workload is {self.workload})"
        found = [name for name in given if name in LANGUAGE_MODEL_ONLY]
        return [
            Problem(f"request.{name}", flag_name(name), expected, str(getattr(self, name)))
            for name in sorted(found)
        ]

    def reduction_fields(self) -> dict[str, Any]:
        """The contract fields of the reduction that were given."""
        fields = {"token_normalizer": self.normalizer, "alpha": self.alpha, "fixed_constant": self.fixed_constant}
        return {name: value for name, value in fields.items() if value is not None}

    @property
    def num_updates(self) -> int:
        """Updates of a run."""
        return self.updates or UPDATES[self.workload]
