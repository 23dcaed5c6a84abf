"""The page: a report or a comparison as one HTML file that needs nothing else."""

from __future__ import annotations

from molprof.analysis.render.html.page import comparison_to_html, report_to_html

__all__ = ["comparison_to_html", "report_to_html"]
