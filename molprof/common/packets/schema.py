"""The messages and fields of Perfetto's trace format that are read; all others are skipped.

Declared here, not taken from the perfetto package: older versions of it lack some of them, and a message of few fields
decodes faster. Numbers and types are those of https://github.com/google/perfetto/tree/main/protos/perfetto/trace.
"""

from __future__ import annotations

import functools
from typing import Any

_PACKAGE = "molprof.packets"
# Types of protobuf fields. An enum is read as a number, so that unknown values are seen.
_TYPES = {"double": 1, "int64": 3, "uint64": 4, "int32": 5, "fixed64": 6, "bool": 8, "string": 9, "bytes": 12}
_TYPES |= {"uint32": 13, "enum": 5}
_MESSAGE = 11
_NAMED = {"iid": "1 uint64", "name": "2 string"}

# Field: number and type; a star marks a repeated one.
_SCHEMA: dict[str, dict[str, str]] = {
    "TracePacket": {
        "clock_snapshot": "6 ClockSnapshot",
        "timestamp": "8 uint64",
        "trusted_packet_sequence_id": "10 uint32",
        "track_event": "11 TrackEvent",
        "interned_data": "12 InternedData",
        "sequence_flags": "13 uint32",
        "incremental_state_cleared": "41 bool",
        "previous_packet_dropped": "42 uint32",
        "compressed_packets": "50 bytes",
        "gpu_counter_event": "52 GpuCounterEvent",
        "gpu_render_stage_event": "53 GpuRenderStageEvent",
        "timestamp_clock_id": "58 uint32",
        "trace_packet_defaults": "59 TracePacketDefaults",
        "track_descriptor": "60 TrackDescriptor",
    },
    "TracePacketDefaults": {"timestamp_clock_id": "58 uint32", "track_event_defaults": "11 TrackEventDefaults"},
    "TrackEventDefaults": {"track_uuid": "11 uint64"},
    "ClockSnapshot": {"clocks": "*1 Clock"},
    "Clock": {
        "clock_id": "1 uint32",
        "timestamp": "2 uint64",
        "is_incremental": "3 bool",
        "unit_multiplier_ns": "4 uint64",
    },
    "TrackDescriptor": {
        "uuid": "1 uint64",
        "name": "2 string",
        "process": "3 ProcessDescriptor",
        "thread": "4 ThreadDescriptor",
        "parent_uuid": "5 uint64",
        "static_name": "10 string",
    },
    "ProcessDescriptor": {"pid": "1 int32", "process_name": "6 string"},
    "ThreadDescriptor": {"pid": "1 int32", "tid": "2 int64", "thread_name": "5 string"},
    "TrackEvent": {
        "category_iids": "*3 uint64",
        "debug_annotations": "*4 DebugAnnotation",
        "type": "9 enum",
        "name_iid": "10 uint64",
        "track_uuid": "11 uint64",
        "categories": "*22 string",
        "name": "23 string",
        "counter_value": "30 int64",
        "double_counter_value": "44 double",
        "flow_ids": "*47 fixed64",
        "terminating_flow_ids": "*48 fixed64",
        "gpu_correlation": "3000 GpuCorrelation",
    },
    "GpuCorrelation": {"render_stage_submission_event_ids": "*1 uint64"},
    "DebugAnnotation": {
        "name_iid": "1 uint64",
        "bool_value": "2 bool",
        "uint_value": "3 uint64",
        "int_value": "4 int64",
        "double_value": "5 double",
        "string_value": "6 string",
        "pointer_value": "7 uint64",
        "legacy_json_value": "9 string",
        "name": "10 string",
        "dict_entries": "*11 DebugAnnotation",
        "array_values": "*12 DebugAnnotation",
        "string_value_iid": "17 uint64",
    },
    "InternedData": {
        "event_categories": "*1 Named",
        "event_names": "*2 Named",
        "debug_annotation_names": "*3 Named",
        "gpu_specifications": "*24 Stage",
        "debug_annotation_string_values": "*29 Text",
        "gpu_counter_descriptors": "*47 InternedCounters",
        "compute_kernels": "*1000 Kernel",
        "compute_arg_names": "*1001 Named",
    },
    "Named": _NAMED,
    "Text": {"iid": "1 uint64", "str": "2 bytes"},
    "Stage": {**_NAMED, "category": "4 enum"},
    "Kernel": {**_NAMED, "demangled_name": "3 string"},
    "InternedCounters": {"iid": "1 uint64", "counter_descriptor": "2 Counters", "gpu_id": "3 int32"},
    "Counters": {"specs": "*1 CounterSpec"},
    "CounterSpec": {"counter_id": "1 uint32", "name": "2 string"},
    "GpuCounterEvent": {
        "counter_descriptor": "1 Counters",
        "counters": "*2 CounterValue",
        "gpu_id": "3 int32",
        "counter_descriptor_iid": "4 uint64",
    },
    "CounterValue": {"counter_id": "1 uint32", "int_value": "2 int64", "double_value": "3 double"},
    "GpuRenderStageEvent": {
        "event_id": "1 uint64",
        "duration": "2 uint64",
        "hw_queue_id": "3 int32",
        "stage_id": "4 int32",
        "context": "5 uint64",
        "extra_data": "*6 ExtraData",
        "specifications": "7 Specifications",
        "gpu_id": "11 int32",
        "hw_queue_iid": "13 uint64",
        "stage_iid": "14 uint64",
        "name": "17 string",
        "kernel_iid": "19 uint64",
        "name_iid": "20 uint64",
        "launch": "21 Launch",
    },
    "ExtraData": {"name": "1 string", "value": "2 string"},
    "Specifications": {"hw_queue": "*2 Description", "stage": "*3 Description"},
    "Description": {"name": "1 string"},
    "Launch": {"grid_size": "1 Size", "workgroup_size": "2 Size", "args": "*3 LaunchArg"},
    "Size": {"x": "1 uint32", "y": "2 uint32", "z": "3 uint32"},
    "LaunchArg": {
        "name_iid": "1 uint64",
        "name": "2 string",
        "int_value": "3 int64",
        "uint_value": "4 uint64",
        "double_value": "5 double",
        "string_value": "6 string",
        "string_value_iid": "7 uint64",
    },
}


@functools.cache
def packet_class() -> Any:
    """The class of one packet of a trace."""
    # Imported on use: few traces need it.
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    # With proto3, decoding checks that text is UTF-8; there, `optional` tells a missing field from 0.
    file = descriptor_pb2.FileDescriptorProto(name="molprof/packets.proto", package=_PACKAGE, syntax="proto3")
    for name, fields in _SCHEMA.items():
        message = file.message_type.add(name=name)
        for field, text in fields.items():
            number, _, kind = text.removeprefix("*").partition(" ")
            added = message.field.add(name=field, number=int(number), label=3 if text.startswith("*") else 1)
            added.type = _TYPES.get(kind, _MESSAGE)
            if added.type == _MESSAGE:
                added.type_name = f".{_PACKAGE}.{kind}"
            elif not text.startswith("*"):
                added.proto3_optional = True
                added.oneof_index = len(message.oneof_decl)
                message.oneof_decl.add(name=f"_{field}")
    # A pool of its own: names in the default one may be taken.
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.TracePacket"))
