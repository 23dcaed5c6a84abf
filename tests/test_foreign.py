"""The page on foreign traces is what the two public traces say."""

from __future__ import annotations

import os
from pathlib import Path

import foreign
import pytest

from molprof.queries import modules

CORPUS = os.environ.get("MOLPROF_CORPUS")


@pytest.mark.skipif(CORPUS is None, reason="MOLPROF_CORPUS is not set")
def test_the_page_is_what_the_traces_say() -> None:
    text = foreign.PAGE.read_text(encoding="utf-8")
    assert text == foreign.page(Path(str(CORPUS))), "run MOLPROF_CORPUS=FOLDER python docs/foreign.py"


def test_its_queries_exist() -> None:
    assert {f"molprof.{command.split()[2]}" for _, command in foreign.QUERIES} <= set(modules())
