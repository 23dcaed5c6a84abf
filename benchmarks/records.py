"""What measurements keep as JSON, so that pages can be made from it on another machine. Imports no torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from msgspec import to_builtins

from molprof.common.errors import TraceError, UsageError
from molprof.common.files import replacing
from molprof.common.manifest import STEP_PHASES, Environment
from molprof.common.typed_json import read_typed

SCHEMA = 1
# No measurement writes as much; more is not read.
MOST_BYTES = 20_000_000
PROCESSORS, DECODING = "processors", "decoding"
NONE = "none"  # in place of a processor
_T = TypeVar("_T")


@dataclass(frozen=True)
class Round:
    """One timed pass. Times are CPU time on a CPU; on a GPU wall time, the device synchronized after each phase."""

    time_ns: int
    phases_ns: dict[str, int]
    batches: int
    steps: int
    row_steps: int

    def __post_init__(self) -> None:
        _require(self.time_ns > 0 and self.row_steps >= self.steps > self.batches > 0, "a round without decode steps")
        _require(self.phases_ns.get("forward", 0) > 0, "a round without a forward")

    @property
    def forward_ns(self) -> float:
        """The model's forward per decode step."""
        return self.phases_ns["forward"] / (self.steps - self.batches)

    @property
    def processor_ratio(self) -> float:
        """The processor's share of all steps."""
        spent = self.phases_ns
        return spent["processor"] / sum(spent.get(phase, 0) for phase in ("prefill", *STEP_PHASES))


@dataclass(frozen=True)
class Answer:
    """What was generated for a molecule; `valid` is None where the machine lacked RDKit and needed it."""

    smiles: str
    text: str
    valid: bool | None


@dataclass(frozen=True)
class Cost:
    """What a processor costs and writes; name `none`: no processor."""

    name: str
    rounds: list[Round]
    operators_per_step: float | None
    kinds: dict[str, int]  # tokens by `KIND_LETTERS`
    malformed_blocks: int
    answers: list[Answer]

    def __post_init__(self) -> None:
        _require(bool(self.rounds and self.answers), f"{self.name} has no round or no answer")
        needed = set() if self.name == NONE else {"processor", "template"}
        _require(all(needed <= item.phases_ns.keys() for item in self.rounds), f"{self.name} lacks its phases")


@dataclass(frozen=True)
class CostSettings:
    """What processors.py was asked for; size None: the presets' own."""

    size: str | None
    count: int
    batch_size: int
    rounds: int
    dtype: str
    max_new_tokens: int | None = None  # None: the bound of molprof capture


@dataclass(frozen=True)
class Costs:
    """A file of processors.py. `left_out` has, by preset and processor, why it was not measured."""

    schema: int
    record: str
    date: str
    environment: Environment
    settings: CostSettings
    models: dict[str, list[Cost]]
    left_out: dict[str, dict[str, str]] = field(default_factory=dict)
    note: str | None = None

    def __post_init__(self) -> None:
        for model, costs in self.models.items():
            _require(bool(costs) and costs[0].name == NONE, f"{model} has no round without a processor first")
            _require(len({(len(cost.rounds), len(cost.answers)) for cost in costs}) == 1, f"{model} has uneven rounds")


@dataclass(frozen=True)
class Way:
    """One way of decoding, timed in interleaved passes; processor None: no LP."""

    processor: str | None
    way: str
    times_ns: list[int]
    tokens: int
    steps: int
    row_steps: int
    busy_steps: int  # row-steps until each row ended
    forced_runs: bool

    def __post_init__(self) -> None:
        _require(bool(self.times_ns) and min(self.times_ns) > 0 < self.tokens, f"{self.way} has no pass or no token")


@dataclass(frozen=True)
class WaySettings:
    """What decoding.py was asked for."""

    size: str | None
    count: int
    batch_size: int
    kv_cache: str
    dtype: str
    repeats: int
    max_new_tokens: int | None = None  # None: the bound of molprof capture


@dataclass(frozen=True)
class Ways:
    """A file of decoding.py."""

    schema: int
    record: str
    date: str
    environment: Environment
    settings: WaySettings
    clock: str  # what `times_ns` are: CPU time or wall time
    load: float
    models: dict[str, list[Way]]

    def __post_init__(self) -> None:
        for model, ways in self.models.items():
            _require(bool(ways) and ways[0].processor is None, f"{model} has no default first")
            _require(len({len(way.times_ns) for way in ways}) == 1, f"{model} has uneven passes")


@dataclass(frozen=True)
class StepRatios:
    """Steps of a pass with recording over the same steps without: recorded ones, and those before and after them."""

    unprofiled: list[float]  # ns, median of each step
    before: float | None  # None: no such step
    inside: float | None
    after: float | None


@dataclass(frozen=True)
class Overhead:
    """A file of overhead.py."""

    schema: int
    model: str
    environment: Environment
    step_ns: StepRatios
    pass_ratio: float  # a pass with phase timestamps over one without, neither recorded
    mark_ns: float
    size: str | None = None


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise TraceError(otherwise)


def read_record(path: Path, kind: type[_T]) -> _T:
    """The file as `kind`. Raises TraceError where it is something else, UsageError where it cannot be read."""
    return read_typed(read_json(path), kind, path.name)


def read_json(path: Path) -> dict[str, Any]:
    """The object of a file, its schema checked."""
    try:
        if path.stat().st_size > MOST_BYTES:
            raise TraceError(f"{path.name} has more than {MOST_BYTES:,} bytes")
        raw = json.loads(path.read_bytes())
    except OSError as problem:
        raise UsageError(f"cannot read {path}: {problem.strerror}") from problem
    except (ValueError, RecursionError) as problem:
        raise TraceError(f"{path.name} is not JSON: {problem}") from problem
    schema = raw.get("schema") if isinstance(raw, Mapping) else None
    if schema != SCHEMA:
        raise TraceError(f"{path.name} has schema {schema!r}; this checkout reads {SCHEMA}")
    return dict(raw)


def write_record(path: Path, record: Any) -> None:
    with replacing(path) as part:
        part.write_text(json.dumps(to_builtins(record), indent=1) + "\n", encoding="utf-8")
