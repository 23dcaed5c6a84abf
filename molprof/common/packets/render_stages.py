"""GPU render stages and GPU counters: how writers that use Perfetto's own GPU events record kernels, copies and sets.

PyTorch's writer puts what Chrome JSON has in `args` into `extra_data`, as text. A stage says what kind of work it is,
and a hardware queue is a stream.
"""

from __future__ import annotations

import re
from typing import Any

from molprof.common.packets.sequences import Sequence
from molprof.common.packets.track_events import number

# Categories of Chrome JSON by the beginning of a stage's name.
_CATEGORIES = {"kernel": "kernel", "memcpy": "gpu_memcpy", "memset": "gpu_memset", "annotation": "gpu_user_annotation"}
_COMPUTE = 2  # category of a stage's specification
# Names in `extra_data` and of launch arguments, and those of Chrome JSON.
_RENAMED = {
    "device id": "device",
    "context id": "context",
    "stream id": "stream",
    "registers_per_thread": "registers per thread",
}
_INTEGER = re.compile(r"0|-?[1-9]\d{0,18}")
_STREAM = re.compile(r"\bstream (\d{1,18})\b", re.IGNORECASE)
_SIZES = (("grid_size", "grid"), ("workgroup_size", "block"))
_ARGUMENTS = ("int_value", "uint_value", "string_value")


class RenderStages:
    """Reads render stages as complete events, and counter samples as counters."""

    def __init__(self) -> None:
        # Descriptions that hold for the whole trace, in older files.
        self._queues: list[str] = []
        self._stages: list[str] = []
        self._counters: dict[int, str] = {}

    def specify(self, event: Any) -> None:
        """Takes the description of queues and stages in an event, if there is one."""
        if event.HasField("specifications"):
            self._queues = [item.name for item in event.specifications.hw_queue]
            self._stages = [item.name for item in event.specifications.stage]

    def event(self, event: Any, sequence: Sequence, place: int) -> dict[str, Any]:
        """A stage's category, name, args, and the name of its queue. Raises DamageError."""
        args = self._args(event, sequence, place)
        queue = self._queue(event, sequence, place)
        stage, compute = self._stage(event, sequence, place)
        known = next((kind for text, kind in _CATEGORIES.items() if stage.lower().startswith(text)), None)
        category = known or ("kernel" if compute or event.HasField("launch") else stage or "gpu_render_stage")
        stream = args.get("stream")
        if not isinstance(stream, int):
            found = _STREAM.search(queue)
            stream = int(found[1]) if found else None
        args["device"] = event.gpu_id
        if stream is not None:
            args["stream"] = stream
        name = self._name(event, sequence, place) or stage
        return {"cat": category, "name": name, "args": args, "queue": queue}

    def counters(self, event: Any, sequence: Sequence, place: int) -> list[tuple[str, str, Any]]:
        """The samples of a counter event: name, owner and value of each. Raises DamageError."""
        gpu = event.gpu_id
        names = self._counters
        if event.HasField("counter_descriptor_iid"):
            entry = sequence.find("gpu_counter_descriptors", event.counter_descriptor_iid, place)
            gpu = event.gpu_id if event.HasField("gpu_id") else entry.gpu_id
            names = {spec.counter_id: spec.name for spec in entry.counter_descriptor.specs}
        elif event.HasField("counter_descriptor"):
            names.update((spec.counter_id, spec.name) for spec in event.counter_descriptor.specs)
        samples = []
        for sample in event.counters:
            value = sample.int_value if sample.HasField("int_value") else number(sample.double_value)
            name = names.get(sample.counter_id) or f"counter {sample.counter_id}"
            samples.append((name, f"GPU {gpu} Counters", value))
        return samples

    def _args(self, event: Any, sequence: Sequence, place: int) -> dict[str, Any]:
        args: dict[str, Any] = {}
        for item in event.extra_data:
            text = item.value
            value = int(text) if _INTEGER.fullmatch(text) else text
            args[_RENAMED.get(item.name, item.name)] = value
        for field, name in _SIZES:
            if event.launch.HasField(field):
                size = getattr(event.launch, field)
                args[name] = [size.x, size.y, size.z]
        for item in event.launch.args:
            name = sequence.name("compute_arg_names", item.name_iid, place) if item.name_iid else item.name
            value = next((getattr(item, field) for field in _ARGUMENTS if item.HasField(field)), None)
            if value is None:
                value = number(item.double_value)
            args[_RENAMED.get(name, name)] = value
        return args

    def _queue(self, event: Any, sequence: Sequence, place: int) -> str:
        if event.hw_queue_iid:
            return sequence.name("gpu_specifications", event.hw_queue_iid, place)
        return _listed(self._queues, event.hw_queue_id) or f"queue {event.hw_queue_id}"

    def _stage(self, event: Any, sequence: Sequence, place: int) -> tuple[str, bool]:
        """The stage's name, and whether it is said to compute."""
        if event.stage_iid:
            entry = sequence.find("gpu_specifications", event.stage_iid, place)
            return str(entry.name), entry.category == _COMPUTE
        return _listed(self._stages, event.stage_id), False

    def _name(self, event: Any, sequence: Sequence, place: int) -> str:
        if event.name_iid:
            return sequence.name("event_names", event.name_iid, place)
        if event.name or not event.kernel_iid:
            return str(event.name)
        kernel = sequence.find("compute_kernels", event.kernel_iid, place)
        return str(kernel.demangled_name or kernel.name)


def _listed(names: list[str], number: int) -> str:
    return names[number] if 0 <= number < len(names) else ""
