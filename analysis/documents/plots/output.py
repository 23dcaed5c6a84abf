"""A figure as a file: PNG, PDF or SVG. The same figure gives the same bytes.

matplotlib's SVG is reduced to known elements and attributes, without styles, so that a page whose policy forbids inline
styles shows it, and its style sheet can change colours in dark mode.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterator
from xml.etree import ElementTree

from matplotlib.figure import Figure

# matplotlib would write the time and its own version.
_METADATA: dict[str, dict[str, None]] = {
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": None, "Format": None, "Type": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}
_HREF = "{http://www.w3.org/1999/xlink}href"
_ELEMENTS = {"svg", "g", "defs", "path", "rect", "use", "text", "tspan", "clipPath", "pattern", "circle", "line"}
_ATTRIBUTES = {
    "viewBox", "width", "height", "x", "y", "d", "transform", "clip-path", "patternUnits", "cx", "cy", "r",
}  # fmt: skip
# Style properties that SVG also takes as attributes.
_PROPERTIES = {
    "fill", "fill-opacity", "fill-rule", "stroke", "stroke-width", "stroke-opacity", "stroke-dasharray",
    "stroke-dashoffset", "stroke-linecap", "stroke-linejoin", "stroke-miterlimit", "opacity", "text-anchor",
    "font-size", "font-weight", "font-style",
}  # fmt: skip


def figure_bytes(figure: Figure, form: str) -> bytes:
    """The figure in png, svg or pdf, on white."""
    data = _saved(figure, form, transparent=False)
    return _clean_svg(data, "").encode() if form == "svg" else data


def figure_svg(figure: Figure, prefix: str) -> str:
    """The figure as an `svg` element without background; `prefix` keeps its ids apart from other figures'."""
    return _clean_svg(_saved(figure, "svg", transparent=True), prefix, inline=True)


def _saved(figure: Figure, form: str, transparent: bool) -> bytes:
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        # Names from traces may hold characters that the font lacks: a PNG shows a box.
        warnings.filterwarnings("ignore", "Glyph .* missing from", UserWarning)
        # A long label may leave no room for the axes; the figure is still whole.
        warnings.filterwarnings("ignore", "constrained_layout not applied", UserWarning)
        figure.savefig(buffer, format=form, metadata=_METADATA[form], transparent=transparent)
    return buffer.getvalue()


def _clean_svg(data: bytes, prefix: str, inline: bool = False) -> str:
    """matplotlib's SVG with `prefix` before every id, as a file or as an element for a page."""
    root = ElementTree.fromstring(data)
    _clean(root, prefix, set(re.findall(r"#([\w.-]+)", data.decode())))
    root.set("stroke-linejoin", "round")
    if inline:
        for name in ("width", "height"):
            del root.attrib[name]
        # Its caption describes it; to a screen reader it is one picture.
        root.set("role", "img")
        root.set("aria-hidden", "true")
        return ElementTree.tostring(root, encoding="unicode")
    root.set("font-family", "DejaVu Sans, Verdana, sans-serif")
    root.set("xmlns", "http://www.w3.org/2000/svg")
    return f'<?xml version="1.0" encoding="utf-8"?>\n{ElementTree.tostring(root, encoding="unicode")}\n'


def _clean(element: ElementTree.Element, prefix: str, used: set[str]) -> None:
    """Keeps known elements and attributes alone, ids that are referred to, and numbers to a hundredth of a point."""
    element.tag = _local(element)
    element.tail = None
    if element.tag not in ("text", "tspan"):
        element.text = None
    pairs = list(_pairs(element))
    element.attrib.clear()
    for name, value in pairs:
        if name == "href":
            if value.startswith("#"):
                element.set(name, f"#{prefix}{value[1:]}")
        elif name == "id":
            if value in used:
                element.set(name, prefix + value)
        elif name in _ATTRIBUTES or name in _PROPERTIES:
            value = value.strip().replace("url(#", f"url(#{prefix}")
            element.set(name, re.sub(r"-?\d+\.\d{3,}", lambda found: f"{float(found[0]):.2f}", value))
    for child in list(element):
        if _local(child) in _ELEMENTS:
            _clean(child, prefix, used)
        else:
            element.remove(child)


def _pairs(element: ElementTree.Element) -> Iterator[tuple[str, str]]:
    """Attributes, and those of its style; `font: 700 9px 'DejaVu Sans'` gives size and weight."""
    for name, value in element.attrib.items():
        if name != "style":
            yield "href" if name == _HREF else name, value
            continue
        for item in value.split(";"):
            part, _, text = (word.strip() for word in item.partition(":"))
            if part != "font":
                yield from ((part, text),) if part in _PROPERTIES else ()
                continue
            if size := re.search(r"([\d.]+)px", text):
                yield "font-size", size[1]
            if re.search(r"\b(bold|[6-9]00)\b", text):
                yield "font-weight", "bold"


def _local(element: ElementTree.Element) -> str:
    """`{namespace}svg` as `svg`."""
    return element.tag.rpartition("}")[2]
