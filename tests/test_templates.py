"""Templates by several threads and from the cache are the templates; every prompt may be generated several times."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from captures import captured, settings
from tiny import loaded

from molprof.profiler.constraints.vectorized import Placeholder
from molprof.profiler.molecules import template as templates_module
from molprof.profiler.molecules.conformers import reference_conformers
from molprof.profiler.molecules.placeholders import best_placeholder
from molprof.profiler.molecules.prompts import read_prompts, repeated
from molprof.profiler.molecules.smiles import Molecule
from molprof.profiler.molecules.template import PLACEHOLDER, Template, Templates, build_template, default_threads


def packaged(count: int) -> list[Molecule]:
    return [prompt.molecule for prompt in read_prompts(None, count).prompts if prompt.molecule is not None]


def same(a: Template, b: Template) -> bool:
    pairs = ((a.ids, b.ids), (a.free, b.free), (a.blocks, b.blocks))
    return a.text == b.text and all(np.array_equal(left, right) for left, right in pairs)


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("cache", [False, True])
def test_templates_do_not_depend_on_how_they_are_built(threads: int, cache: bool) -> None:
    tokenizer = loaded("qwen").tokenizer
    molecules = packaged(12)
    expected = [build_template(molecule, tokenizer) for molecule in molecules]
    maker = Templates(tokenizer, PLACEHOLDER, threads, cache)
    tokenizer(["a", "a b"], padding="max_length", max_length=9)  # as each batch's prompts leave the tokenizer
    for _ in range(2):
        assert all(map(same, maker.build(molecules), expected))


def test_the_cache_builds_a_molecule_once_until_it_is_cleared(monkeypatch: pytest.MonkeyPatch) -> None:
    built = []

    def counted(molecule: Molecule, **rest: object) -> str:
        built.append(molecule.smiles)
        return molecule.smiles

    monkeypatch.setattr(templates_module, "build_template", counted)
    first, second = packaged(2)
    maker = Templates(loaded("qwen").tokenizer, PLACEHOLDER, 1, True)
    assert maker.build([first, first, second, first]) == [first.smiles, first.smiles, second.smiles, first.smiles]
    maker.build([second, first])
    assert built == [first.smiles, second.smiles]
    maker.clear()
    maker.build([second])
    assert built == [first.smiles, second.smiles, second.smiles]


def test_threads_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_CPUS_PER_TASK", raising=False)
    monkeypatch.setattr("os.cpu_count", lambda: 6)
    assert default_threads() == 4
    monkeypatch.setattr("os.cpu_count", lambda: 64)
    assert default_threads() == 8
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "3")
    assert default_threads() == 3
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "no")
    assert default_threads() == 8


def test_generations_are_recorded(tmp_path: Path) -> None:
    asked = settings(
        processor="vectorized", count=2, generations=3, batch_size=4, repeats=1, warmup=0, template_threads=2,
        template_cache=True, max_new_tokens=4,
    )  # fmt: skip
    result = captured(tmp_path / "o.json", asked, repeated(read_prompts(None, 2), 3))
    smiles = [run.smiles for run in result.manifest.molecules]
    assert smiles == [smiles[0]] * 3 + [smiles[3]] * 3
    assert smiles[0] != smiles[3]
    assert result.manifest.settings == asked
    assert result.manifest.resolved.template_threads == 2
    assert result.notes == ()


@pytest.mark.parametrize("tokenizer", ["qwen", "llama"])
def test_the_placeholder_processor_takes_what_fits_best(tokenizer: str) -> None:
    coordinates = [position for _, positions in reference_conformers() for position in positions]
    made = Placeholder(loaded(tokenizer).target)
    best = best_placeholder(loaded(tokenizer).tokenizer, coordinates)
    assert (made.placeholder, made.parameters["placeholder_tokens"]) == (best.text, best.tokens)
    assert made.parameters["fitted_to_coordinates"] == len(coordinates) == 660
    assert best.too_short == 0


def test_the_packaged_conformers_are_those_of_the_packaged_molecules() -> None:
    """Bond by bond as RDKit makes them now: another release may choose another conformer, not other bonds."""
    import math

    from rdkit import Chem

    from training.corpus import conformer

    stored = reference_conformers()
    assert [smiles for smiles, _ in stored] == [molecule.smiles for molecule in packaged(64)]
    for smiles, positions in stored[:8]:
        made = conformer(smiles, 0)
        assert made is not None
        for bond in Chem.MolFromSmiles(smiles).GetBonds():
            a, b = bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()
            difference = math.dist(positions[a], positions[b]) - math.dist(made.positions[a], made.positions[b])
            assert abs(difference) < 0.15
