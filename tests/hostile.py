"""Random inputs, plausible and hostile in turn: traces, manifests, grids, requests, schemas."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import origin_trace
import rank_traces
import tiny_trace
from decoding_trace import decoding
from hypothesis import strategies as st

TEXTS = st.one_of(
    st.text(max_size=12),
    st.sampled_from(
        ["", "\x00", "\ud800", "\u202e", "\x1b[31m", "'\"\\", "%s{}", "a" * 300, "../x", "NaN", "\n", "$x"]
    ),
)
NUMBERS = st.one_of(
    st.integers(-3, 100),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from([2**31, 2**32, 2**53, 2**63 - 1, 2**63, 2**64, -(2**63), 10**40, 1e300, -1e300, 1e-300, -0.0, 0.5]),
)
SCALARS = st.one_of(NUMBERS, TEXTS, st.none(), st.booleans())
VALUES: st.SearchStrategy[Any] = st.recursive(
    SCALARS, lambda inside: st.lists(inside, max_size=4) | st.dictionaries(TEXTS, inside, max_size=3), max_leaves=8
)

CATEGORIES = (
    "cpu_op", "kernel", "gpu_memcpy", "gpu_memset", "cuda_runtime", "cuda_driver", "user_annotation", "ac2g", "fwdbwd",
    "gpu_user_annotation", "python_function", "cpu_instant_event", "overhead", "Trace", "molprof.sequence",
    "molprof.token",
)  # fmt: skip
NAMES = (
    "aten::mm", "aten::copy_", "aten::item", "aten::gather", "cudaLaunchKernel", "cudaGraphLaunch", "cudaMemcpyAsync",
    "cudaStreamSynchronize", "cudaDeviceSynchronize", "ProfilerStep#3", "[memory]", "molprof.step batch=0 step=1",
    "molprof.forward batch=0 step=1", "nn.Module: Linear_0", "torch/nn/modules/linear.py(3): forward", "sm90_gemm_bf16",
    "Memcpy DtoH (Device -> Pageable)", "Memset (Device)", "ncclDevKernel_AllReduce_Sum_f32_RING_LL", "thread_name",
    "process_name", "execute_context_1(8)_generation_2(2)", "autograd::engine::evaluate_function: MmBackward0",
    "triton_poi_fused_add_0", "void at::native::elementwise_kernel<4, add>(int)", "Context Sync", "sequence 0: C",
)  # fmt: skip
KEYS = (
    "correlation", "stream", "device", "External id", "Input Dims", "Input type", "Input Strides", "Concrete Inputs",
    "Bytes", "Addr", "Total Allocated", "Total Reserved", "Device Id", "Device Type", "Python id", "Python parent id",
    "Python module id", "graph id", "graph node id", "bytes", "name", "sort_index", "grid", "block", "sequence",
    "token_id", "kind", "step", "Collective name", "dtype", "Group size", "wait_on_stream",
)  # fmt: skip
PLACES = st.one_of(st.integers(0, 3), st.sampled_from([7, 100, "python3", "stream 7"]))
PLAUSIBLE = st.fixed_dictionaries(
    {
        "ph": st.sampled_from("XXXXXXXXiBEsftCbeM"),
        "cat": st.sampled_from(CATEGORIES),
        "name": st.sampled_from(NAMES),
        "pid": PLACES,
        "tid": PLACES,
        "ts": st.integers(0, 200) | st.floats(0, 200, width=32),
        "dur": st.integers(0, 100) | st.floats(0, 100, width=32),
        "args": st.dictionaries(
            st.sampled_from(KEYS),
            st.one_of(st.integers(0, 5), st.lists(st.lists(st.integers(0, 9), max_size=3), max_size=3), VALUES),
            max_size=6,
        ),
    },
    optional={"id": st.integers(0, 5), "bp": st.just("e"), "s": st.just("t")},
)
HOSTILE = st.fixed_dictionaries(
    {},
    optional={
        "ph": st.sampled_from(["X", "i", "B", "E", "M", "Z", "", None, 5]),
        "cat": st.sampled_from(CATEGORIES) | VALUES,
        "name": st.sampled_from(NAMES) | VALUES,
        "pid": PLACES | VALUES,
        "tid": PLACES | VALUES,
        "ts": SCALARS,
        "dur": SCALARS,
        "args": st.dictionaries(st.sampled_from(KEYS) | TEXTS, VALUES, max_size=5) | VALUES,
        "id": VALUES,
    },
)

# Start and duration of the event of this number among so many.
TIMES: dict[str, Callable[[int, int], tuple[int, int]]] = {
    "nested": lambda place, events: (place, 2 * (events - place)),
    "touching": lambda place, events: (place // 2 * 5, place % 2 * 5),
    "in reverse": lambda place, events: (events - place, 1),
}
DAMAGE = st.binary(max_size=3) | st.sampled_from([b"[" * 3000, b'{"a":' * 3000, b"]}", b"null", b"1e999", b"\\" * 99])


# Traces of a captured run, of a run of a program, of a rank, of functions and modules.
DOCUMENTS = (
    tiny_trace.document(), decoding(lengths=[3, 2], batch_size=2), {"traceEvents": origin_trace.EVENTS},
    {"traceEvents": rank_traces.events(), "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 2}},
)  # fmt: skip


def manifests() -> st.SearchStrategy[Any]:
    return changed(st.just(tiny_trace.MANIFEST))


@st.composite
def changed(draw: st.DrawFn, originals: st.SearchStrategy[Any]) -> Any:
    """A document with some values replaced, dropped or added."""
    made = copy.deepcopy(draw(originals))
    for _ in range(draw(st.integers(0, 3))):
        place: Any = made
        while True:
            if not isinstance(place, (dict, list)) or not place:
                break
            key = draw(st.sampled_from(sorted(place) if isinstance(place, dict) else range(len(place))))
            if isinstance(place[key], (dict, list)) and place[key] and draw(st.integers(0, 5)):
                place = place[key]
                continue
            action = draw(st.sampled_from(["replace", "replace", "drop", "add"]))
            if action == "replace":
                place[key] = draw(VALUES)
            elif action == "drop":
                del place[key]
            elif isinstance(place, dict):
                place[draw(TEXTS)] = draw(VALUES)
            break
    return made


@st.composite
def traces(draw: st.DrawFn) -> bytes:
    """The text of a trace: random events, or one that is changed a little with some of these, maybe damaged."""
    events: list[Any] = draw(st.lists(st.one_of(PLAUSIBLE, PLAUSIBLE, PLAUSIBLE, HOSTILE), max_size=12))
    keys: dict[str, Any] = {}
    if draw(st.booleans()):
        keys = draw(changed(st.sampled_from(DOCUMENTS)))
        if isinstance(given := keys.pop("traceEvents", []), list):
            events = [*given, *events[: draw(st.integers(0, 2))]]
    if draw(st.integers(0, 3)) == 0:
        keys[draw(st.sampled_from(["deviceProperties", "distributedInfo", "schemaVersion", "molprof_trimmed"]))] = draw(
            VALUES
        )
    shape = draw(st.sampled_from(["as drawn", "as drawn", "nested", "touching", "in reverse"]))
    for place, event in enumerate(events):
        if shape != "as drawn" and isinstance(event, dict):
            start, length = TIMES[shape](place, len(events))
            event |= {"ts": start, "dur": length}
    text = json.dumps({**keys, "traceEvents": events}).encode()
    if draw(st.integers(0, 5)) == 0:
        place = draw(st.integers(0, len(text)))
        text = text[:place] + draw(DAMAGE) + text[place + draw(st.integers(0, 5)) :]
    return text


def toml(value: Any) -> str:
    """A value as TOML: JSON is nearly that."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(str(key))} = {toml(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return f"[{', '.join(map(toml, value))}]"
    return '"null"' if value is None else json.dumps(value)


OPTIONS = st.sampled_from(["model", "batch-size", "processor", "n", "seed", "full", "attention", "kv-cache", "smiles"])
TABLES = st.dictionaries(OPTIONS | TEXTS, st.lists(SCALARS, max_size=3) | VALUES, max_size=3)
CHOICES = st.lists(NUMBERS | TEXTS, min_size=1, max_size=3, unique_by=repr)
LISTS = st.dictionaries(OPTIONS, CHOICES, min_size=1, max_size=3)
GRIDS = st.one_of(
    st.fixed_dictionaries({"grid": LISTS}, optional={"exclude": st.lists(TABLES, max_size=1)}),
    st.fixed_dictionaries(
        {"grid": TABLES},
        optional={"options": TABLES, "exclude": st.lists(TABLES, max_size=2) | VALUES, "command": SCALARS},
    ),
    st.dictionaries(TEXTS, VALUES, max_size=3),
).map(lambda content: "".join(f"{json.dumps(key)} = {toml(value)}\n" for key, value in content.items()))

SCHEMAS: st.SearchStrategy[Any] = st.recursive(
    st.one_of(
        st.booleans(),
        st.fixed_dictionaries(
            {"type": st.sampled_from(["string", "integer", "number", "boolean", "null"])},
            optional={
                "minLength": NUMBERS, "maxLength": NUMBERS, "minimum": NUMBERS, "exclusiveMaximum": NUMBERS,
                "pattern": st.sampled_from(["a*", "^[0-9]{2}$", "(", "(?=a)", "[", "\\", "a{9999}", "é+"]) | TEXTS,
                "format": TEXTS, "enum": st.lists(VALUES, max_size=3), "multipleOf": NUMBERS,
            },
        ),
        VALUES,
    ),
    lambda inside: st.fixed_dictionaries(
        {},
        optional={
            "type": st.sampled_from(["object", "array"]) | VALUES,
            "properties": st.dictionaries(TEXTS, inside, max_size=2), "items": inside,
            "anyOf": st.lists(inside, max_size=2), "allOf": st.lists(inside, max_size=2),
            "required": st.lists(TEXTS, max_size=2) | VALUES,
            "additionalProperties": inside, "$ref": st.sampled_from(["#", "#/$defs/a", "#/x", "y"]) | TEXTS,
            "$defs": st.dictionaries(st.just("a"), inside, max_size=1), "prefixItems": st.lists(inside, max_size=2),
            "minItems": NUMBERS, "maxItems": NUMBERS,
        },
    ),
    max_leaves=4,
)  # fmt: skip

CHATS = st.lists(st.fixed_dictionaries({"role": st.sampled_from(["system", "user"]), "content": TEXTS}), min_size=1)
REQUESTS = st.lists(
    st.one_of(
        st.fixed_dictionaries({"prompt": TEXTS}, optional={"schema": SCHEMAS, "number": SCALARS}),
        st.fixed_dictionaries({"messages": CHATS}, optional={"choices": st.lists(TEXTS, min_size=1, max_size=3)}),
        st.fixed_dictionaries(
            {"prompt": TEXTS},
            optional={
                "schema": SCHEMAS, "regex": TEXTS, "choices": st.lists(TEXTS, max_size=2) | VALUES, "grammar": TEXTS,
                "messages": VALUES, "max_tokens": SCALARS,
            },
        ),
        st.fixed_dictionaries({"messages": st.lists(st.dictionaries(st.sampled_from(["role", "content"]), VALUES))}),
        VALUES,
    ).map(json.dumps)
    | TEXTS,
    max_size=3,
).map("\n".join)  # fmt: skip

# Names of operators, from the parts that a name may have.
OPERATORS = st.one_of(
    st.lists(
        st.sampled_from(["aten", "::", "mul", "_", "__class__", "import", ".", "9", "٣", "{x}", "\n", "(", '"', "#"]),
        max_size=6,
    ).map("".join),
    st.from_regex(r"\A[a-z_]{1,4}::[a-z0-9_]{1,6}(\.[a-z]{1,3})?\Z"),
    TEXTS,
)
