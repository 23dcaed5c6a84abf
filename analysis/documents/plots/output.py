"""A figure as a file: PNG, PDF or SVG. The same figure gives the same bytes.

matplotlib's SVG is reduced to known elements and attributes, without styles, so that a page whose policy forbids inline
styles shows it, and its style sheet can change colours in dark mode.
"""

from __future__ import annotations

import io
import re
import warnings
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from xml.etree import ElementTree

    from matplotlib.figure import Figure

FORMATS = ("png", "svg", "pdf")
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
    """The figure in one of `FORMATS`, on white."""
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
    from xml.etree import ElementTree  # heavy

    root = ElementTree.fromstring(data)
    _clean(root, prefix, set(re.findall(r"#([\w.-]+)", data.decode())))
    root.set("stroke-linejoin", "round")
    if inline:
        for name in ("width", "height"):
            del root.attrib[name]
        # Its caption describes it; to a screen reader it is one picture.
        root.set("role", "img")
        root.set("aria-hidden", "true")
    else:
        root.set("font-family", "DejaVu Sans, Verdana, sans-serif")
        root.set("xmlns", "http://www.w3.org/2000/svg")
    text = ElementTree.tostring(root, encoding="unicode")
    return text if inline else f'<?xml version="1.0" encoding="utf-8"?>\n{text}\n'


def _clean(element: ElementTree.Element, prefix: str, used: set[str]) -> None:
    element.tag = _local(element.tag)
    element.tail = None
    if element.tag != "text" and element.tag != "tspan":
        element.text = None
    element.attrib = _attributes(element, prefix, used)
    for child in list(element):
        if _local(child.tag) in _ELEMENTS:
            _clean(child, prefix, used)
        else:
            element.remove(child)


def _attributes(element: ElementTree.Element, prefix: str, used: set[str]) -> dict[str, str]:
    kept = {}
    for name, value in element.attrib.items():
        if name == "style":
            kept.update(_style(value, prefix))
        elif name == _HREF and value.startswith("#"):
            kept["href"] = f"#{prefix}{value[1:]}"
        elif name == "id" and value in used:
            kept["id"] = prefix + value
        elif name in _ATTRIBUTES or name in _PROPERTIES:
            kept[name] = _value(value, prefix)
    return kept


def _style(style: str, prefix: str) -> dict[str, str]:
    """A style attribute as presentation attributes; `font: 700 9px 'DejaVu Sans'` gives size and weight."""
    kept = {}
    for item in style.split(";"):
        name, _, value = (part.strip() for part in item.partition(":"))
        if name == "font":
            if size := re.search(r"([\d.]+)px", value):
                kept["font-size"] = size[1]
            if re.search(r"\b(bold|[6-9]00)\b", value):
                kept["font-weight"] = "bold"
        elif name in _PROPERTIES:
            kept[name] = _value(value, prefix)
    return kept


def _value(value: str, prefix: str) -> str:
    """The value with prefixed ids and two decimals, a hundredth of a point."""
    value = value.strip().replace("url(#", f"url(#{prefix}")
    return re.sub(r"-?\d+\.\d{3,}", lambda found: f"{float(found[0]):.2f}", value)


def _local(tag: object) -> str:
    """`{namespace}svg` as `svg`; nothing for comments and the like."""
    return tag.rpartition("}")[2] if isinstance(tag, str) else ""
