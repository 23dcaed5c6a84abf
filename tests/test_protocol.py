"""The trace processor's messages: as protobuf writes and reads them."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from molprof.analysis.trace_processor import protocol, session
from molprof.analysis.trace_processor.protocol import message, numbers, read_fields, text, to_columns
from molprof.common.errors import EngineError

INTEGERS = [0, 1, 127, 128, -1, 300, 2**63 - 1, -(2**63), 2**42]


def stream_type() -> Any:
    """The class of the messages, from the definitions in the perfetto package."""
    spec = importlib.util.find_spec("perfetto")
    assert spec is not None
    (folder,) = spec.submodule_search_locations or ()
    path = Path(folder, "trace_processor", "trace_processor.descriptor")
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(path.read_bytes()).file:
        pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("perfetto.protos.TraceProcessorRpcStream"))


def test_requests() -> None:
    query = message((session._QUERY_SQL, "SELECT 'é'"))
    request = message((session._SEQUENCE, 300), (session._METHOD, session._QUERY), (session._QUERIED, query))
    (read,) = stream_type().FromString(message((session._MESSAGE, request))).msg
    assert (read.seq, read.request, read.query_args.sql_query) == (300, session._QUERY, "SELECT 'é'")


def test_results() -> None:
    batch = {
        "cells": [2, 3, 4, 5] * len(INTEGERS),
        "varint_cells": INTEGERS,
        "float64_cells": [0.5] * len(INTEGERS),
        "string_cells": "é\0" * len(INTEGERS),
        "blob_cells": [b"", b"\0x"] + [b"y"] * (len(INTEGERS) - 2),
    }
    written = stream_type()(msg=[{"query_result": {"column_names": list("abcd"), "batch": [batch]}}])
    (reply,) = protocol.contents(read_fields(written.SerializeToString()), session._MESSAGE)
    result = read_fields(protocol.content(read_fields(reply), session._ANSWERED))
    assert text(result, session._QUERY_ERROR) == ""
    columns = to_columns(list("abcd"), map(read_fields, protocol.contents(result, session._BATCH)))
    assert {name: column.tolist() for name, column in columns.items()} == {
        "a": INTEGERS,
        "b": batch["float64_cells"],
        "c": ["é"] * len(INTEGERS),
        "d": batch["blob_cells"],
    }
    assert numbers(b"").tolist() == []


@pytest.mark.parametrize("reply", [b"\x0a\x05ab", b"\x0a", b"\x80", b"\x0b\x01", b"\x09\x00"])
def test_a_reply_that_is_no_message_is_an_error(reply: bytes) -> None:
    with pytest.raises(EngineError, match="cut off or no message"):
        read_fields(reply)
