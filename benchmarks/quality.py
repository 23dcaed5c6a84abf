#!/usr/bin/env python3
"""What each logits processor does to the coordinates: writes the second table of docs/processors.md.

    python benchmarks/quality.py [-n 64] [--batch-size 32] [--models qwen,llama] [--processors generic,qwen] [--dry]

Bond lengths of the generated text against those of an ETKDG conformer, greedy decoding, the same molecules for all.
Intervals are of 95 %, molecules drawn 2,000 times with replacement. Nothing is timed.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from molprof.common.files import replacing
from molprof.profiler.capture.account import molecule_runs
from molprof.profiler.decoding.runner import Runner
from molprof.profiler.models.load import LoadedModel, load
from molprof.profiler.molecules.conformers import reference_conformers
from molprof.profiler.molecules.prompts import Prompt, read_prompts
from molprof.profiler.molecules.quality import bond_errors
from molprof.profiler.molecules.smiles import read_positions
from molprof.profiler.processors import make_processor
from molprof.profiler.settings import Decoding

PAGE = Path(__file__).resolve().parent.parent / "docs" / "processors.md"
BEGIN, END = "<!-- benchmarks/quality.py writes from here -->", "<!-- to there -->"
PROCESSORS = "generic,qwen,placeholder,truncate,grammar"
DRAWS = 2000
# A bond that is off by more than this is another bond, or none.
BROKEN_ANGSTROM = 0.3
HEADINGS = (
    "processor", "bonds that can be measured", "median error, Å (95 %)", "off by more than 0.3 Å",
    "error minus that of no processor, Å (95 %)", "the same, cut numbers read as they are", "off by more than 0.3 Å",
)  # fmt: skip

# Errors of one molecule's bonds; None where a position is missing.
Errors = list[float | None]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", type=int, default=64, help="molecules")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--models", default="qwen,llama")
    parser.add_argument("--processors", default=PROCESSORS)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dry", action="store_true", help="print the tables, leave the page as it is")
    options = parser.parse_args()
    prompts = read_prompts(None, options.n).prompts
    sections = []
    for model in options.models.split(","):
        loaded = load(model, device=options.device)
        texts = {}
        for name in (None, *options.processors.split(",")):
            print(f"{model}, {name or 'none'}", file=sys.stderr, flush=True)
            texts[name or "none"] = generated(loaded, name, prompts, options.batch_size)
        sections.append(f"### {model}\n\n{table(prompts, texts)}")
    text = f"{options.n} molecules in batches of {options.batch_size}, greedy.\n\n" + "\n\n".join(sections)
    print(text)
    if not options.dry:
        write(text)


def generated(loaded: LoadedModel, name: str | None, prompts: Sequence[Prompt], size: int) -> list[str]:
    """One text per molecule, in their order."""
    runner = Runner(loaded, None if name is None else make_processor(name, loaded.target), Decoding())
    plans = runner.plan(prompts, size)
    runs = molecule_runs(runner, plans, runner.run(plans, None))[0]
    return [run.text for run in sorted(runs, key=lambda run: run.sequence)]


def table(prompts: Sequence[Prompt], texts: dict[str, list[str]]) -> str:
    references = dict(reference_conformers())
    smiles = [prompt.molecule.smiles for prompt in prompts if prompt.molecule is not None]

    def errors(name: str, cut: bool) -> list[Errors]:
        pairs = zip(smiles, texts[name], strict=True)
        return [bond_errors(own, read_positions(text, cut), references[own]) for own, text in pairs]

    base = errors("none", False)
    rows = []
    for name in texts:
        strict, lenient = errors(name, False), errors(name, True)
        measured = sum(error is not None for item in strict for error in item)
        rows.append(
            (
                name,
                f"{measured / sum(map(len, strict)):.1%}",
                interval(strict, median),
                broken(strict),
                "-" if name == "none" else paired(strict, base),
                interval(lenient, median),
                broken(lenient),
            )
        )
    cells = [HEADINGS, ("---", *("---:",) * (len(HEADINGS) - 1)), *rows]
    return "\n".join("| " + " | ".join(row) + " |" for row in cells)


def median(sample: Sequence[Errors]) -> float | None:
    found = [error for item in sample for error in item if error is not None]
    return statistics.median(found) if found else None


def broken(sample: Sequence[Errors]) -> str:
    found = [error for item in sample for error in item if error is not None]
    return f"{sum(error > BROKEN_ANGSTROM for error in found) / len(found):.1%}" if found else "-"


def paired(own: Sequence[Errors], base: Sequence[Errors]) -> str:
    """Mean difference over the bonds that both have, so that a processor which loses the hard ones gains nothing."""
    both = [
        [mine - other for mine, other in zip(one, two, strict=True) if mine is not None and other is not None]
        for one, two in zip(own, base, strict=True)
    ]
    return interval(both, mean)


def mean(sample: Sequence[Sequence[float | None]]) -> float | None:
    found = [error for item in sample for error in item if error is not None]
    return statistics.fmean(found) if found else None


def interval(sample: Sequence, figure: Callable[[Sequence], float | None]) -> str:
    """The figure, and the middle 95 % of it over molecules drawn with replacement."""
    value = figure(sample)
    if value is None:
        return "-"
    rng = random.Random(0)
    drawn = (figure(rng.choices(sample, k=len(sample))) for _ in range(DRAWS))
    draws = sorted(item for item in drawn if item is not None)
    return f"{value:.3f} ({draws[len(draws) // 40]:.3f} to {draws[-1 - len(draws) // 40]:.3f})"


def write(text: str) -> None:
    """Puts the tables between the page's marks."""
    before, rest = PAGE.read_text().split(BEGIN)
    with replacing(PAGE) as part:
        part.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{rest.split(END)[1]}")


if __name__ == "__main__":
    main()
