"""The class of a trace's packets, made from `trace.proto`.

Declared there, not taken from the perfetto package: older versions of it lack some fields, and a message of few fields
decodes faster.
"""

from __future__ import annotations

import functools
import re
from typing import Any

# Types of protobuf fields, by their number in descriptors; any other is a message.
_TYPES = {"double": 1, "int64": 3, "uint64": 4, "int32": 5, "fixed64": 6, "bool": 8, "string": 9, "bytes": 12}
_TYPES |= {"uint32": 13}
_MESSAGE = 11
_OF_FILE = re.compile(r"^message (\w+) \{$|^  (optional|repeated) (\w+) (\w+) = (\d+);$", re.MULTILINE)


@functools.cache
def packet_class() -> Any:
    """The class of one packet of a trace."""
    # Imported on use: few traces need it.
    from importlib.resources import files

    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(name="molprof/packets.proto", package="molprof.packets", syntax="proto3")
    message: Any = None
    for name, label, kind, field, number in _OF_FILE.findall((files(__package__) / "trace.proto").read_text()):
        if name:
            message = file.message_type.add(name=name)
            continue
        added = message.field.add(name=field, number=int(number), label=3 if label == "repeated" else 1)
        added.type = _TYPES.get(kind, _MESSAGE)
        if added.type == _MESSAGE:
            added.type_name = f".{file.package}.{kind}"
        elif label == "optional":
            added.proto3_optional = True
            added.oneof_index = len(message.oneof_decl)
            message.oneof_decl.add(name=f"_{field}")
    # A pool of its own: names in the default one may be taken.
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{file.package}.TracePacket"))
