#!/usr/bin/env python3
"""What each logits processor does to the coordinates: writes the second table of docs/processors.md.

    python benchmarks/quality.py [-n 64] [--batch-size 32] [--models qwen,llama] [--processors generic,qwen] [--dry]

Bond lengths of the generated text against those of an ETKDG conformer, greedy decoding, the same molecules for all.
Intervals are of 95 %, molecules drawn 2,000 times with replacement. Nothing is timed.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Sequence

from shared import generation_parser, insert, progress, runner, table

from molprof.common.settings import CaptureSettings
from molprof.profiler.capture.account import molecule_runs
from molprof.profiler.models.load import LoadedModel, load
from molprof.profiler.molecules.conformers import reference_conformers
from molprof.profiler.molecules.prompts import Prompt, read_prompts
from molprof.profiler.molecules.quality import bond_errors
from molprof.profiler.molecules.smiles import read_positions

MARKS = "<!-- benchmarks/quality.py writes from here -->", "<!-- to there -->"
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
    parser = generation_parser(__doc__, count=64, batch_size=32)
    parser.add_argument("--processors", default=PROCESSORS)
    parser.add_argument("--dry", action="store_true", help="print the tables, leave the page as it is")
    options = parser.parse_args()
    prompts = read_prompts(None, options.count).prompts
    sections = []
    for model in options.models.split(","):
        loaded = load(CaptureSettings(model, device=options.device))
        texts = {}
        for name in (None, *options.processors.split(",")):
            progress(f"{model}, {name or 'none'}")
            texts[name or "none"] = generated(loaded, name, prompts, options.batch_size)
        sections.append(f"### {model}\n\n{table(HEADINGS, rows(prompts, texts))}")
    text = f"{options.count} molecules in batches of {options.batch_size}, greedy.\n\n" + "\n\n".join(sections)
    print(text)
    if not options.dry:
        insert("processors.md", MARKS, text)


def generated(loaded: LoadedModel, name: str | None, prompts: Sequence[Prompt], size: int) -> list[str]:
    """One text per molecule, in their order."""
    used = runner(loaded, name, batch_size=size)
    plans = used.plan(prompts)
    runs = molecule_runs(used, plans, used.run(plans, None))[0]
    return [run.text for run in sorted(runs, key=lambda run: run.sequence)]


def rows(prompts: Sequence[Prompt], texts: dict[str, list[str]]) -> list[tuple[str, ...]]:
    """A row per processor."""
    references = dict(reference_conformers())
    smiles = [prompt.molecule.smiles for prompt in prompts if prompt.molecule is not None]

    def errors(name: str, cut: bool) -> list[Errors]:
        pairs = zip(smiles, texts[name], strict=True)
        return [bond_errors(own, read_positions(text, cut), references[own]) for own, text in pairs]

    base = errors("none", False)
    made = []
    for name in texts:
        strict, lenient = errors(name, False), errors(name, True)
        made.append(
            (
                name,
                f"{len(measured(strict)) / sum(map(len, strict)):.1%}",
                interval(strict, statistics.median),
                broken(strict),
                "-" if name == "none" else paired(strict, base),
                interval(lenient, statistics.median),
                broken(lenient),
            )
        )
    return made


def measured(sample: Sequence[Errors]) -> list[float]:
    return [error for item in sample for error in item if error is not None]


def broken(sample: Sequence[Errors]) -> str:
    found = measured(sample)
    return f"{sum(error > BROKEN_ANGSTROM for error in found) / len(found):.1%}" if found else "-"


def paired(own: Sequence[Errors], base: Sequence[Errors]) -> str:
    """Mean difference over the bonds that both have, so that a processor which loses the hard ones gains nothing."""
    both: list[Errors] = [
        [mine - other for mine, other in zip(one, two, strict=True) if mine is not None and other is not None]
        for one, two in zip(own, base, strict=True)
    ]
    return interval(both, statistics.fmean)


def interval(sample: Sequence[Errors], figure: Callable[[list[float]], float]) -> str:
    """The figure, and the middle 95 % of it over molecules drawn with replacement."""
    found = measured(sample)
    if not found:
        return "-"
    rng = random.Random(0)
    drawn = (measured(rng.choices(sample, k=len(sample))) for _ in range(DRAWS))
    draws = sorted(figure(item) for item in drawn if item)
    return f"{figure(found):.3f} ({draws[len(draws) // 40]:.3f} to {draws[-1 - len(draws) // 40]:.3f})"


if __name__ == "__main__":
    main()
