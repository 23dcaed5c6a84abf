"""The presets' tokenizers give the counts and ids of the public vocabularies."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny import ids, table, tokenizer

from molprof.profiler.models.tokenizers import TAGS, VOCABULARIES, preset_tokenizer

COUNTS = {
    "<0.0000,0.0000,0.0000>": (22, 16),
    "<0.5,1.2,0.3>": (13, 13),
    "<-1.0,2.5,-0.7>": (13, 13),
    "<1.234,-2.345,0.987>": (19, 13),
    "<-3.14,2.71,-1.61>": (16, 13),
    "<12.345,-23.456,34.567>": (22, 13),
    "<-1.2345,0.9876,-5.4321>": (22, 16),
    "[C]<0.0000,0.0000,0.0000>=[O]<0.0000,0.0000,0.0000>": (47, 35),
}
IDS = {
    "qwen": {"0": 15, "9": 24, ".": 13, ",": 11, "-": 12, ",-": 4999, "-.": 14523, ">[": 30768, "]<": 34139},
    "llama": {"0": 15, "9": 24, ">[": 31868, "]<": 35239, ",-": 5106},
}


@pytest.mark.parametrize("name", IDS)
def test_token_counts_and_ids(name: str) -> None:
    place = list(IDS).index(name)
    assert {text: len(ids(name, text)) for text in COUNTS} == {text: counts[place] for text, counts in COUNTS.items()}
    assert {text: ids(name, text) for text in IDS[name]} == {text: [index] for text, index in IDS[name].items()}


@pytest.mark.parametrize(("name", "base"), [("qwen", 151_643), ("llama", 128_000)])
def test_tags_are_single_special_tokens_after_the_vocabulary(name: str, base: int) -> None:
    specials = len(VOCABULARIES[name].specials)
    first = base + specials
    assert [ids(name, tag) for tag in TAGS] == [[first + place] for place in range(4)]
    assert len(tokenizer(name)) == first + 4
    assert table(name).special == frozenset(range(base, first + 4))


@pytest.mark.parametrize("name", IDS)
def test_byte_table_writes_what_the_tokenizer_read(name: str) -> None:
    text = "[CONFORMER][C@@H]<-1.2345,0.5,12.0>%10（é\n\t🙂[/CONFORMER]"
    assert table(name).join(ids(name, text)) == text
    assert table(name).size == len(tokenizer(name))
    assert table(name).of(151_900) == b""


def test_conversion_is_cached_and_a_damaged_cache_is_replaced(
    tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer("llama")
    (kept,) = (own_cache / "tokenizers").glob("llama-*.json")
    whole = kept.read_bytes()
    monkeypatch.setenv("MOLPROF_CACHE", str(tmp_path))
    stored = tmp_path / "tokenizers" / kept.name
    stored.parent.mkdir()
    stored.write_bytes(whole[:1000])
    again = preset_tokenizer("llama")
    assert stored.read_bytes() == whole
    assert again("<0.5,1.2,0.3>")["input_ids"] == ids("llama", "<0.5,1.2,0.3>")
