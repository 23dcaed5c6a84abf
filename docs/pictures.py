"""Pictures of runs on a GPU: docs/images/PREFIX-waterfall.png and PREFIX-step.png, from traces/. Needs Chromium.

python docs/pictures.py
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from study import prefixes, read_study

from molprof import api
from molprof.analysis.compare import compare
from molprof.analysis.documents.figures import reports_of
from molprof.analysis.documents.plots import plot_file
from molprof.analysis.ui.contents import Place
from molprof.analysis.ui.prepare import prepare
from molprof.common.errors import MolprofError
from molprof.common.files import replacing

ROOT = Path(__file__).parent.parent
# The browser that the tests drive.
sys.path.append(str(ROOT / "tests"))
from browser import CHROMIUM, Page, page  # noqa: E402
from ui_server import serving, wait_for_view  # noqa: E402

# Of the first model that has both.
_PAIRS = (("qwen", "qwen-generic"), ("llama", "llama-generic"))
_WIDTH, _HEIGHT = 1500, 900
_PAUSE_S, _ALIKE, _MOST_PICTURES = 1.0, 4, 60


def write_pictures(root: Path = ROOT, rehearsal: bool = False) -> list[Path]:
    """Writes the pictures of every GPU that has a run without a processor and one with `generic`, and returns them.

    Raises TraceError for runs that are no evidence, unless `rehearsal`; MolprofError without Chromium.
    """
    written = []
    for prefix in prefixes(root):
        study = read_study(root, prefix, rehearsal, {name for pair in _PAIRS for name in pair})
        pair = next((pair for pair in _PAIRS if all(name in study.reports for name in pair)), None)
        if pair is None:
            continue
        waterfall = plot_file("waterfall", reports_of(compare([study.reports[name] for name in pair])), "png")
        step = _screenshot(root / "traces" / f"{prefix}-{pair[1]}.json.gz")
        for name, data in (("waterfall", waterfall), ("step", step)):
            path = root / "docs" / "images" / f"{prefix}-{name}.png"
            with replacing(path) as part:
                part.write_bytes(data)
            written.append(path)
    return written


def _screenshot(trace: Path) -> bytes:
    """The Perfetto UI as `molprof open` shows it, at the step of median duration."""
    if CHROMIUM is None:
        raise MolprofError("no Chromium to take a picture with", hint="Debian: apt install chromium")
    # The browser's processes may still write to their profile when it has ended.
    with tempfile.TemporaryDirectory(prefix="molprof-", ignore_cleanup_errors=True) as folder:
        result = prepare([api.load(trace, stacks=True)], Path(folder), Place())
        with serving(result) as server, page(Path(folder, "profile")) as window:
            window.size(_WIDTH, _HEIGHT)
            window.open(server.address)
            wait_for_view(window, result)
            return _settled(window)


def _settled(window: Page) -> bytes:
    """What is shown once nothing changes any more: each track is drawn when its own query is answered."""
    shown = [window.picture()]
    while len(shown) < _MOST_PICTURES and (len(shown) < _ALIKE or len(set(shown[-_ALIKE:])) > 1):
        time.sleep(_PAUSE_S)
        shown.append(window.picture())
    return shown[-1]


if __name__ == "__main__":
    write_pictures()
