"""A training run as a sequence of states, and where two of them part: update, parameter, element."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from safetensors.torch import load_file, save_file
from torch import Tensor

from harness.comparing.comparison import compare
from harness.comparing.drift import Drift
from harness.workloads.training import Update
from loss_ops.loss_call import digest

PARAMETERS, LOSS, REWARDS = "parameters", "loss", "rewards"
QUANTITIES = (PARAMETERS, LOSS, REWARDS)
State = dict[str, Tensor]
"""Tensors by `quantity:name`."""


def parameters_state(parameters: Mapping[str, Tensor]) -> State:
    """The parameters alone."""
    return {f"{PARAMETERS}:{name}": tensor for name, tensor in parameters.items()}


def state_of(update: Update, parameters: Mapping[str, Tensor]) -> State:
    """What is compared after an update."""
    return parameters_state(parameters) | {
        f"{LOSS}:loss": update.result.loss,
        f"{REWARDS}:rewards": update.rewards_B,
    }


def digests_of(state: Mapping[str, Tensor]) -> dict[str, str]:
    """sha256 of each tensor's bytes."""
    return {name: digest(tensor.reshape(-1)) for name, tensor in state.items()}


def parameter_digest(digests: Mapping[str, str]) -> str:
    """One sha256 over the names and digests of all parameters."""
    lines = [f"{name} {value}\n" for name, value in sorted(digests.items()) if name.startswith(f"{PARAMETERS}:")]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


@dataclass
class Recorded:
    """A run whose states lie in `folder`, one file an update; only their digests are held in memory.

    `start` are the parameters' digests before the first update.
    """

    folder: Path
    digests: list[dict[str, str]] = field(default_factory=list)
    start: dict[str, str] = field(default_factory=dict)

    @property
    def moved(self) -> bool:
        """Whether any update changed a parameter: where none did, equal parameters show nothing."""
        return any(each.get(name) != value for each in self.digests for name, value in self.start.items())

    def record(self, state: State) -> None:
        """Add the state after the next update."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.digests.append(digests_of(state))
        held = {name: tensor.detach().cpu().contiguous() for name, tensor in state.items()}
        save_file(held, self._path(len(self.digests)))

    def load(self, number: int) -> State:
        """The state after update `number`, from 1."""
        return load_file(self._path(number))

    def _path(self, number: int) -> Path:
        return self.folder / f"update-{number:05d}.safetensors"


@dataclass(frozen=True)
class Parting:
    """The first difference between two runs, in words."""

    update: int
    quantity: str
    name: str
    drift: Drift

    def __str__(self) -> str:
        what = f"parameter {self.name}" if self.quantity == PARAMETERS else self.quantity
        place = f", element {list(self.drift.first)}" if self.drift.first else ""
        values = (
            f"expected {self.drift.expected} ({self.drift.expected_bits}), "
            f"got {self.drift.got} ({self.drift.got_bits})"
        )
        return f"first difference: update {self.update}, {what}{place}: {values}"


@dataclass
class Tally:
    """All that was compared of one quantity, over all updates."""

    elements: int = 0
    mismatched: int = 0
    max_ulp: int = 0
    max_abs: float = 0.0

    def add(self, drift: Drift) -> None:
        """Count one comparison."""
        self.elements += drift.elements
        self.mismatched += drift.mismatched
        self.max_ulp = max(self.max_ulp, drift.max_ulp)
        self.max_abs = max(self.max_abs, drift.max_abs)


class TrajectoryComparison:
    """Compares states, update by update, with a recorded run. Raw bits decide."""

    def __init__(self, expected: Recorded) -> None:
        self.expected = expected
        self.tallies = {name: Tally() for name in QUANTITIES}
        self.parting: Parting | None = None
        self.parameter_digests: list[str] = []

    def see(self, state: State) -> None:
        """Compare the state after the next update."""
        digests = digests_of(state)
        self.parameter_digests.append(parameter_digest(digests))
        number = len(self.parameter_digests)
        wanted = self.expected.digests[number - 1]
        stored: State | None = None
        for key, tensor in state.items():
            quantity, _, name = key.partition(":")
            if digests[key] == wanted.get(key):
                self.tallies[quantity].elements += tensor.numel()
                continue
            stored = self.expected.load(number) if stored is None else stored
            drift = compare(name, stored[key], tensor.detach().cpu())
            self.tallies[quantity].add(drift)
            self.parting = self.parting or Parting(number, quantity, name, drift)
