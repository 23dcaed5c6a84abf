"""The picture of docs/architecture.md: floors, rooms and imports, as SVG that follows light and dark mode."""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape

from shape import ANALYSIS, PROFILER, Checkout, reachable

WIDTH, MARGIN, GUTTER = 1000, 34, 36
FLOOR, BOX, GAP, TOP, LANE = 74, 34, 14, 96, 12
SWEEPS = 8
CAPTION = "An arrow is an import. Left out: imports that follow from others, of commands (all), and of common (by all)."

STYLE = """\
text { font: 15px ui-sans-serif, system-ui, sans-serif; fill: #1f2328; text-anchor: middle; dominant-baseline: central }
.small { font-size: 13px; fill: #59636e }
.head { font-weight: 600 }
.room { fill: #ffffff; stroke: #57606a; stroke-width: 1.2 }
.bar { fill: #ddf4ff; stroke: #0969da; stroke-width: 1.2 }
.floor { fill: #f6f8fa }
.arrow { fill: none; stroke: #8c959f; stroke-width: 1.4 }
.tip { fill: #8c959f }
@media (prefers-color-scheme: dark) {
  text { fill: #f0f6fc }
  .small { fill: #9198a1 }
  .room { fill: #0d1117; stroke: #9198a1 }
  .bar { fill: #0c2d6b; stroke: #4493f8 }
  .floor { fill: #151b23 }
  .arrow { stroke: #6e7681 }
  .tip { fill: #6e7681 }
}
"""


@dataclass(eq=False)
class Node:
    """A room, or the place where an arrow crosses a floor (`name` None)."""

    name: str | None
    floor: int
    x: float = 0.0
    below: list[Node] = field(default_factory=list)
    above: list[Node] = field(default_factory=list)

    @property
    def width(self) -> float:
        return LANE if self.name is None else 34 + 8.2 * len(label(self.name))

    def middle(self) -> float:
        """Mean x of what it is joined to."""
        near = [node.x for node in (*self.above, *self.below)]
        return sum(near) / len(near) if near else self.x


def label(room: str) -> str:
    return room.rpartition(".")[2]


def picture(code: Checkout) -> str:
    """The picture of a checkout."""
    floors = max(len(ANALYSIS), len(PROFILER))
    height = TOP + floors * FLOOR + 104
    half = (WIDTH - 2 * MARGIN - GUTTER) / 2
    parts = [_bar(12, "molprof: cli, commands", "parse options, call, print")]
    for floor in range(floors):
        top = _top(floor, floors) - (FLOOR - BOX) / 2 + 4
        parts.append(f'<rect class="floor" x="{MARGIN}" y="{top}" width="{WIDTH - 2 * MARGIN}" height="{FLOOR - 8}"/>')
        parts.append(f'<text class="small" x="{MARGIN / 2}" y="{top + FLOOR / 2 - 4}">{floor + 1}</text>')
    for title, column, left in (("analysis", ANALYSIS, MARGIN), ("profiler", PROFILER, MARGIN + half + GUTTER)):
        parts.append(f'<text class="head" x="{left + half / 2}" y="{TOP - 16}">{title}</text>')
        nodes = _placed(column, code.arrows(room for names in column for room in names), left, half)
        parts += [_arrow(node, below, floors) for node in nodes for below in node.below]
        parts += [_room(node, floors) for node in nodes if node.name is not None]
    parts.append(_bar(height - 88, "molprof.common", "errors, files, values, documents, settings, processes"))
    parts.append(f'<text class="small" x="{WIDTH / 2}" y="{height - 16}">{CAPTION}</text>')
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">\n'
        "<title>Which folder of molprof imports which</title>\n"
        f"<style>\n{STYLE}</style>\n{body}\n</svg>\n"
    )


def _placed(column: tuple[tuple[str, ...], ...], arrows: set[tuple[str, str]], left: float, width: float) -> list[Node]:
    """The nodes of a column, ordered so that few arrows cross, with their x."""
    layers = [[Node(name, floor) for name in names] for floor, names in enumerate(column)]
    known = {node.name: node for layer in layers for node in layer}
    downward = {(source, target) for source, target in arrows if known[source].floor > known[target].floor}
    for source, target in sorted(_reduced(downward)):
        node, end = known[source], known[target]
        for floor in range(node.floor - 1, end.floor, -1):
            lane = Node(None, floor)
            layers[floor].append(lane)
            _join(node, lane)
            node = lane
        _join(node, end)
    for layer in layers:
        _spread(layer, left, width)
    for sweep in range(SWEEPS):
        for layer in layers if sweep % 2 else layers[::-1]:
            layer.sort(key=Node.middle)
            _spread(layer, left, width)
    return [node for layer in layers for node in layer]


def _join(upper: Node, lower: Node) -> None:
    upper.below.append(lower)
    lower.above.append(upper)


def _spread(layer: list[Node], left: float, width: float) -> None:
    """Gives the nodes of one floor their x, in their order, the rest of the width between them."""
    space = (width - sum(node.width for node in layer)) / (len(layer) + 1)
    x = left
    for node in layer:
        node.x = x + space + node.width / 2
        x += space + node.width


def _reduced(arrows: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """The arrows that do not follow from others."""
    out: dict[str, set[str]] = {}
    for source, target in arrows:
        out.setdefault(source, set()).add(target)
    return {
        (source, target)
        for source, target in arrows
        if not any(target in reachable(other, out) for other in out[source] - {target})
    }


def _top(floor: int, floors: int) -> float:
    return TOP + (floors - 1 - floor) * FLOOR + (FLOOR - BOX) / 2


def _room(node: Node, floors: int) -> str:
    x, y = node.x - node.width / 2, _top(node.floor, floors)
    return (
        f'<rect class="room" x="{x:.1f}" y="{y:.1f}" width="{node.width:.1f}" height="{BOX}" rx="6"/>'
        f'<text x="{node.x:.1f}" y="{y + BOX / 2:.1f}">{escape(label(node.name or ""))}</text>'
    )


def _arrow(node: Node, below: Node, floors: int) -> str:
    """From the bottom of one place to the top of another, with a tip where that is a room."""
    y, end = _top(node.floor, floors) + BOX, _top(below.floor, floors)
    if below.name is None:
        bend = (y + end) / 2
        line = f"C{node.x:.1f} {bend:.1f} {below.x:.1f} {bend:.1f} {below.x:.1f} {end:.1f} V{end + BOX:.1f}"
        return f'<path class="arrow" d="M{node.x:.1f} {y:.1f} {line}"/>'
    end -= 7
    bend = (y + end) / 2
    return (
        f'<path class="arrow" d="M{node.x:.1f} {y:.1f} C{node.x:.1f} {bend:.1f} {below.x:.1f} {bend:.1f} '
        f'{below.x:.1f} {end:.1f}"/><path class="tip" d="M{below.x:.1f} {end + 7:.1f} l-4.5 -8 h9 z"/>'
    )


def _bar(y: float, title: str, what: str) -> str:
    return (
        f'<rect class="bar" x="{MARGIN}" y="{y}" width="{WIDTH - 2 * MARGIN}" height="50" rx="6"/>'
        f'<text class="head" x="{WIDTH / 2}" y="{y + 17}">{title}</text>'
        f'<text class="small" x="{WIDTH / 2}" y="{y + 36}">{what}</text>'
    )
