"""Args as the SQL modules read them: a device that is no number stays what it is, sizes stand where they count."""

from __future__ import annotations

from typing import Any

import msgspec

from molprof.analysis.reader.events import COLLECTIVE_ARGS, GRAPH_ARGS, NUMBERS, SIZE_ARGS, WHOLE_CATEGORIES
from molprof.analysis.reader.text import exact_float

# What the annotations around collectives begin with; gloo and mpi run on the CPU.
_BACKENDS = ("nccl:", "rccl:", "ucc:", "xccl:", "hccl:")
_decode = msgspec.json.Decoder(dict[str, Any], float_hook=exact_float).decode
_encode = msgspec.json.encode


def usable_args(category: str | None, name: str | None, text: bytes) -> bytes:
    """The args of a kind of event, as JSON text.

    The engine would read `true` as 1 and an array as nothing: where SQL expects a number or a text, both become text.
    Arrays of sizes become objects (`{"0": {"0": 2048}}`): `compact` takes those.
    """
    odd = b"[" in text or b"true" in text or b"false" in text or text.count(b"{") > 1
    if not odd or category in WHOLE_CATEGORIES:
        return text
    args = _decode(text)
    for key in (*NUMBERS, *COLLECTIVE_ARGS, *GRAPH_ARGS):
        if isinstance(args.get(key), (bool, list, dict)):
            args[key] = _encode(args[key]).decode()
    for key in SIZE_ARGS:
        if key in args and (name or "").startswith(_BACKENDS):
            args[key] = _numbered(args[key])
        else:
            args.pop(key, None)
    return _encode(args)


def _numbered(value: Any) -> Any:
    """The value with arrays as objects whose keys are places."""
    return {str(place): _numbered(item) for place, item in enumerate(value)} if isinstance(value, list) else value
