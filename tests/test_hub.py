"""Unknown model names cost one short request to the hub, or none: its cache answers where the hub cannot."""

from __future__ import annotations

from typing import Any

import huggingface_hub
import pytest
from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError
from tiny import loaded

from molprof.common.errors import UsageError
from molprof.common.settings import CaptureSettings
from molprof.profiler.models.hub import only_local
from molprof.profiler.models.load import AutoTokenizer, load


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names that the hub was asked for; it knows those that begin with `there`."""
    asked: list[str] = []

    def model_info(self: object, name: str, timeout: float) -> None:
        asked.append(name)
        if name.startswith("down"):
            raise ConnectionError("Name or service\n not known")
        if " " in name:
            raise HFValidationError("spaces")
        if not name.startswith("there"):
            # Its own constructor needs a response, which differs between versions of the HTTP library.
            raise RepositoryNotFoundError.__new__(RepositoryNotFoundError)

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", model_info)
    return asked


def test_the_hub_is_asked_once(requests: list[str]) -> None:
    assert only_local("model", "there/model") is None
    with pytest.raises(
        UsageError, match=r"no model 'mistyped': no preset, no folder, and http\S+ has none of this name"
    ):
        only_local("model", "mistyped")
    with pytest.raises(
        UsageError, match=r"no tokenizer 'a b': no preset, no folder, and no name that a hub id can have"
    ):
        only_local("tokenizer", "a b")
    assert requests == ["there/model", "mistyped", "a b"]


def test_where_the_hub_is_not_there_its_cache_is_taken(requests: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    options: list[dict[str, Any]] = []

    def from_cache(name: str, **more: Any) -> Any:
        options.append(more)
        if name == "down/kept":
            return loaded("llama").tokenizer
        raise OSError("We couldn't connect")

    monkeypatch.setattr(AutoTokenizer, "from_pretrained", from_cache)
    with pytest.raises(UsageError) as caught:
        load(CaptureSettings("down/absent"))
    assert str(caught.value) == (
        "no model or tokenizer 'down/absent': no preset and no folder, not in the model hub's cache, and the model hub"
        f" {huggingface_hub.constants.ENDPOINT} cannot be reached (Name or service not known)"
    )
    assert load(CaptureSettings("llama", tokenizer="down/kept", device="cpu")).tokenizer is loaded("llama").tokenizer
    assert requests == ["down/absent", "down/kept"]
    assert [item["local_files_only"] for item in options] == [True, True]


def test_without_leave_to_ask_nobody_is_asked(requests: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    assert only_local("model", "there/model") == "HF_HUB_OFFLINE forbids asking the model hub"
    assert requests == []
