"""`python -m training`: make a preset's checkpoint from data to packed weights."""

from __future__ import annotations

import dataclasses
import json
import random
from pathlib import Path
from typing import Any

import click
import torch

from molprof.profiler.models.architecture import ARCHITECTURES
from molprof.profiler.models.checkpoint import checkpoint_path
from molprof.profiler.models.tokenizers import preset_tokenizer
from training.checkpoint import evaluate, load_compact, save
from training.corpus import Sample, build, load
from training.train import Settings, train

HELD_OUT = 256
SPLIT_SEED = 5


@click.command()
@click.argument("preset", type=click.Choice(sorted(ARCHITECTURES)))
@click.option(
    "--work",
    type=click.Path(path_type=Path),
    default=Path("training-run"),
    show_default=True,
    help="Folder for the data, the state to resume from, and the log.",
)
@click.option("--molecules", default=40_000, show_default=True, help="Training molecules to make.")
@click.option(
    "--workers", default=2, show_default=True, help="Processes that make them. Other numbers make other molecules."
)
@click.option("--data-seed", default=1, show_default=True, help="Seed for the training molecules.")
@click.option("--threads", default=1, show_default=True, help="CPU threads for training.")
@click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="NAME=VALUE",
    help="Change a training setting. May be given several times.",
)
@click.option("--evaluate-only", is_flag=True, help="Score and pack the last saved state without training.")
def main(
    preset: str,
    work: Path,
    molecules: int,
    workers: int,
    data_seed: int,
    threads: int,
    overrides: tuple[str, ...],
    evaluate_only: bool,
) -> None:
    """Train PRESET, then pack and score its checkpoint. An interrupted run resumes.

    \b
    Example:
      python -m training qwen --work run --set steps=9000
    """
    torch.set_num_threads(threads)
    work.mkdir(parents=True, exist_ok=True)
    data = work / f"molecules-{molecules}-{workers}-{data_seed}.jsonl"
    if not data.exists():
        click.echo(f"making {molecules} molecules with {workers} processes", err=True)
        build(data, molecules, max_atoms=13, seed=data_seed, workers=workers)
    held, samples = split(load(data))
    settings = Settings(preset, **dict(_setting(item) for item in overrides))
    folder = work / preset
    folder.mkdir(exist_ok=True)
    tokenizer = preset_tokenizer(preset)
    until = dataclasses.replace(settings, steps=0) if evaluate_only else settings
    model, vocabulary, step = train(until, samples, tokenizer, folder)
    notes: dict[str, Any] = {
        "settings": dataclasses.asdict(settings),
        "steps": step,
        "samples": len(samples),
        "data_seed": data_seed,
        "torch": torch.__version__,
    }
    save(checkpoint_path(preset), model, vocabulary, preset, notes)
    packed, _ = load_compact(checkpoint_path(preset))  # the score is that of the packed float16 weights
    notes["held_out"] = dataclasses.asdict(evaluate(packed, vocabulary, tokenizer, held))
    save(checkpoint_path(preset), model, vocabulary, preset, notes)
    click.echo(json.dumps(notes, indent=1))


def split(samples: list[Sample]) -> tuple[list[Sample], list[Sample]]:
    """Held-out and training samples. `profiler/molecules/molecules.smi` lists the first 64 held-out ones."""
    shuffled = list(samples)
    random.Random(SPLIT_SEED).shuffle(shuffled)
    return shuffled[:HELD_OUT], shuffled[HELD_OUT:]


def _setting(text: str) -> tuple[str, Any]:
    name, _, value = text.partition("=")
    known = {field.name: field.type for field in dataclasses.fields(Settings)}
    if name not in known or name == "preset":
        raise click.BadParameter(f"{name!r} is not a training setting; known: {', '.join(sorted(known))}")
    try:
        return name, (float if known[name] == "float" else int)(value)
    except ValueError:
        raise click.BadParameter(f"{text!r}: expected a {known[name]}") from None


if __name__ == "__main__":
    main()
