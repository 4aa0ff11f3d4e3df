"""Cuts whole groups out of a capture and writes what the oracle finds on them.

Run from the repository root:

    PYTHONPATH=tests python -m oracle.make_capture_slice SOURCE.safetensors --sequences 0 4 OUTPUT.safetensors

Writes OUTPUT.safetensors and, beside it, OUTPUT.expected.json. The same source gives the same bytes.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from oracle.capture import Capture, read_capture, sha256_of, write_capture
from oracle.grpo import OracleResult, OracleSettings, grpo_oracle

NUM_LARGEST = 20


def slice_capture(capture: Capture, start: int, stop: int, origin: str) -> Capture:
    """Sequences [start, stop), which must be whole groups; per-sequence and per-group texts are cut too."""
    bounds = capture.group_boundaries()
    if start not in bounds or stop not in bounds or start >= stop:
        raise ValueError(f"sequences [{start}, {stop}) are not whole groups of {list(bounds)}")
    first, last = bounds.index(start), bounds.index(stop)
    metadata = dict(capture.metadata)
    metadata["group_boundaries"] = json.dumps([bound - start for bound in bounds[first : last + 1]])
    metadata["slice"] = f"sequences [{start}, {stop}) of {origin}"
    for key, part in (("completions", slice(start, stop)), ("prompts", slice(first, last))):
        if key in metadata:
            metadata[key] = json.dumps(json.loads(metadata[key])[part])
    stored = {name: value[start:stop] for name, value in capture.stored.items()}
    return Capture(stored, capture.dtypes, metadata)


def base_settings(capture: Capture) -> dict[str, Any]:
    """The settings that the capture's metadata carries."""
    meta = capture.metadata
    return {
        "group_boundaries": capture.group_boundaries(),
        "clip_eps_low": float(meta["clip_eps"]),
        "clip_eps_high": float(meta["clip_eps"]),
        "beta": float(meta["beta"]),
        "kl_estimator": meta["kl_estimator"],
        "temperature": float(meta["temperature"]),
        "real_vocab_size": int(meta["real_vocab_size"]),
    }


def normalizer_settings(num_slots: int) -> dict[str, dict[str, Any]]:
    """One setting of each normalizer; the fixed constant is the number of slots, B * T."""
    return {
        "global_active_tokens": {},
        "per_sequence_then_mean": {"sequence_denominator": "live"},
        "fixed_constant": {"fixed_constant": num_slots},
        "length_power": {"alpha": 0.5},
    }


def run_normalizers(capture: Capture) -> dict[str, OracleResult]:
    """The oracle's result under each normalizer."""
    inputs, base = capture.inputs(), base_settings(capture)
    return {
        name: grpo_oracle(*inputs, settings=OracleSettings(**base, token_normalizer=name, **extra))
        for name, extra in normalizer_settings(capture.stored["old_logps"].size).items()
    }


def expected_values(capture: Capture, path: Path) -> dict[str, Any]:
    """The content of the expected file: what no normalizer changes once, the rest per normalizer."""
    results = run_normalizers(capture)
    result = results["global_active_tokens"]
    extra = normalizer_settings(capture.stored["old_logps"].size)
    return {
        "capture": path.name,
        "capture_sha256": sha256_of(path),
        "shape_btv": list(result.grad.shape),
        "settings": base_settings(capture) | {"std_eps": 1e-6, "advantage": "mean_std_population"},
        "advantages": result.advantages.tolist(),
        "per_sequence_active_tokens": result.per_sequence_active_tokens.tolist(),
        "per_sequence_policy": result.per_sequence_policy.tolist(),
        "per_sequence_kl": result.per_sequence_kl.tolist(),
        "clip_counts": result.clip_counts,
        "normalizers": {name: extra[name] | _scalars(value) for name, value in results.items()},
        "grad_policy_logits": {"normalizer": "global_active_tokens", "largest": _largest(result.grad)},
    }


def _scalars(result: OracleResult) -> dict[str, float]:
    return {
        "loss": result.loss,
        "policy_loss": result.policy_loss,
        "kl": result.kl,
        "grad_abs_sum": float(np.abs(result.grad).sum()),
        "grad_l2": float(np.sqrt((result.grad * result.grad).sum())),
    }


def _largest(grad: np.ndarray[Any, np.dtype[np.float64]]) -> list[dict[str, Any]]:
    flat = np.argsort(-np.abs(grad), axis=None, kind="stable")[:NUM_LARGEST]
    indices = np.stack(np.unravel_index(flat, grad.shape), axis=1).tolist()
    return [{"index_btv": index, "value": float(grad[tuple(index)])} for index in indices]


def main(argv: list[str] | None = None) -> int:
    """Write the slice and its expected values."""
    parser = argparse.ArgumentParser(prog="oracle.make_capture_slice", description=__doc__.splitlines()[0])
    parser.add_argument("source", type=Path, help="capture to cut")
    parser.add_argument("output", type=Path, help="capture to write, ending in .safetensors")
    parser.add_argument("--sequences", type=int, nargs=2, metavar=("START", "STOP"), required=True)
    args = parser.parse_args(argv)
    origin = f"{args.source.name} (sha256 {sha256_of(args.source)})"
    start, stop = args.sequences
    piece = slice_capture(read_capture(args.source), start, stop, origin)
    write_capture(args.output, piece)
    text = json.dumps(expected_values(piece, args.output), indent=1)
    args.output.with_suffix(".expected.json").write_text(text + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
