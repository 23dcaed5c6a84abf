"""matplotlib's SVG made small and safe: known elements and attributes only, no style sheet, no style attributes.

A page whose policy forbids inline styles then shows it as it is, and its style sheet can give colours other values
in dark mode. Text was escaped by matplotlib and is escaped again here, on the way out of the parsed tree.
"""

from __future__ import annotations

import re
from xml.etree import ElementTree

_SVG = "http://www.w3.org/2000/svg"
_HREF = "{http://www.w3.org/1999/xlink}href"
_ELEMENTS = {"svg", "g", "defs", "path", "rect", "use", "text", "tspan", "clipPath", "pattern", "circle", "line"}
_ATTRIBUTES = {
    "viewBox", "width", "height", "x", "y", "d", "transform", "id", "href", "clip-path", "patternUnits", "cx", "cy",
    "r",
}  # fmt: skip
# Style properties that SVG also takes as attributes.
_PROPERTIES = {
    "fill", "fill-opacity", "fill-rule", "stroke", "stroke-width", "stroke-opacity", "stroke-dasharray",
    "stroke-dashoffset", "stroke-linecap", "stroke-linejoin", "stroke-miterlimit", "opacity", "text-anchor",
    "font-size", "font-weight", "font-style",
}  # fmt: skip
_NUMBER = re.compile(r"-?\d+\.\d{3,}")
_FONT = "DejaVu Sans, Verdana, sans-serif"


def clean_svg(data: bytes, prefix: str, inline: bool = False) -> str:
    """The SVG that matplotlib wrote, with `prefix` before every id; as a whole file or as an element for a page."""
    root = ElementTree.fromstring(data)
    used = set(re.findall(rb"#([\w.-]+)", data))
    _clean(root, prefix, {name.decode() for name in used})
    root.set("stroke-linejoin", "round")
    if inline:
        for name in ("width", "height"):
            del root.attrib[name]
        # Its caption says what it shows; a screen reader takes it as one picture.
        root.set("role", "img")
        root.set("aria-hidden", "true")
    else:
        root.set("font-family", _FONT)
        root.set("xmlns", _SVG)
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
        elif name == _HREF:
            if value.startswith("#"):
                kept["href"] = f"#{prefix}{value[1:]}"
        elif name == "id":
            if value in used:
                kept["id"] = prefix + value
        elif name in _ATTRIBUTES or name in _PROPERTIES:
            kept[name] = _value(value, prefix)
    return kept


def _style(style: str, prefix: str) -> dict[str, str]:
    """Presentation attributes of a style attribute; `font: 700 9px 'DejaVu Sans'` gives its size and weight."""
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
    """Ids prefixed, numbers with two decimals: a hundredth of a point is not seen."""
    value = re.sub(r"url\(#", f"url(#{prefix}", value)
    return _NUMBER.sub(lambda found: f"{float(found[0]):.2f}", value.strip())


def _local(tag: object) -> str:
    """`{namespace}svg` as `svg`; nothing for comments and the like."""
    return tag.rpartition("}")[2] if isinstance(tag, str) else ""
