"""From a matplotlib figure to an SVG that may stand inside a page: same bytes every time, own ids, a text alternative."""

import html
import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure as MplFigure
from matplotlib.typing import RcKeyType

STYLE: dict[RcKeyType, Any] = {
    "svg.hashsalt": "foretell",  # fixed, so that the ids and with them the bytes are the same on every build
    "svg.fonttype": "path",  # looks the same in every browser; the text alternative is beside it
    "font.family": "DejaVu Sans",  # ships with matplotlib
    "font.size": 9.0,
    "axes.labelsize": 9.0,
    "axes.titlesize": 9.0,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "legend.fontsize": 8.0,
    "legend.frameon": False,
    "axes.linewidth": 0.7,
    "axes.edgecolor": "#57606a",
    "axes.labelcolor": "#1b1f24",
    "xtick.color": "#57606a",
    "ytick.color": "#57606a",
    "xtick.labelcolor": "#1b1f24",
    "ytick.labelcolor": "#1b1f24",
    "text.color": "#1b1f24",
    "figure.facecolor": "white",
}


@contextmanager
def canvas(width: float, height: float) -> Iterator[MplFigure]:
    """Yield an empty figure of `width` by `height` inches under the report's style; no global state is left behind."""
    with mpl.rc_context(STYLE):
        yield MplFigure(figsize=(width, height), layout="constrained")


def to_svg(figure: MplFigure, key: str, alt: str) -> str:
    """Return `figure` as an SVG element whose ids begin with `key` and whose title is `alt`."""
    buffer = io.StringIO()
    with mpl.rc_context(STYLE):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, flags=re.DOTALL)
    text = re.sub(r'\bid="', f'id="{key}-', text)
    text = re.sub(r'(xlink:href|href)="#', rf'\1="#{key}-', text)
    text = text.replace("url(#", f"url(#{key}-")
    opening, rest = text.split(">", 1)
    opening = re.sub(r'\s(width|height)="[^"]*"', "", opening)
    title = f'<title id="{key}-title">{html.escape(alt)}</title>'
    return f'{opening} role="img" aria-labelledby="{key}-title">\n {title}{rest.rstrip()}\n'
