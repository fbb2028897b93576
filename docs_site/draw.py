"""Draws the diagrams of the docs: `docs/diagrams/NAME.txt` says what is where, `NAME.svg` is what readers see.

    python -m docs_site.draw

A description has one thing per line; the text after `|` is shown.

    size 760 300
    group 20 20 400 200 | on your laptop
    box gateway 40 60 140 56 core | gateway | public API
    arrow gateway dispatcher | events
    arrow gateway dispatcher faint | later
    line 100 200 300 200 | along these points
    text 40 280 | a remark

Boxes are `box` (plain), `core`, `good`, `bad` or `wait`. An arrow leaves a box at the side that faces the other one.
The drawing has the colours of both themes, for readers of the repository; the site takes those of its own theme.
"""

from __future__ import annotations

import html
from itertools import pairwise

from docs_site.site import ROOT

DIAGRAMS = ROOT / "docs/diagrams"
_STYLE = """
.box{fill:#fff;stroke:#c3c9d6;stroke-width:1.5}.core{fill:#e8ebfd;stroke:#3347c4;stroke-width:1.5}
.good{fill:#e0f4e8;stroke:#14713f;stroke-width:1.5}.bad{fill:#fdebec;stroke:#b8232f;stroke-width:1.5}
.wait{fill:#fbf0d9;stroke:#80560a;stroke-width:1.5}.group{fill:#f7f8fb;stroke:#dde1ea;stroke-dasharray:5 4}
.arrow{fill:none;stroke:#566076;stroke-width:1.6}.head{fill:#566076}.faint{stroke-dasharray:5 4}.back{fill:#fff}
text{font:14px system-ui,sans-serif;fill:#161c2b;text-anchor:middle}.name{font-weight:620}
.note{font-size:12px;fill:#566076}.left{text-anchor:start}
@media(prefers-color-scheme:dark){.box,.back{fill:#161b27}.box{stroke:#3a4358}.core{fill:#232b52;stroke:#9dadff}
.good{fill:#10301f;stroke:#63d297}.bad{fill:#3b171b;stroke:#ff8b8f}.wait{fill:#33270d;stroke:#e8bd62}
.group{fill:#0e1119;stroke:#262d3d}.arrow{stroke:#a3adc2}.head{fill:#a3adc2}text{fill:#e7eaf2}.note{fill:#a3adc2}}
"""

Box = tuple[float, float, float, float]


def drawn(description: str) -> str:
    boxes: dict[str, Box] = {}
    under: list[str] = []
    over: list[str] = []
    width, height = 760, 300
    for line in description.splitlines():
        if not line.strip():
            continue
        command, *shown = (part.strip() for part in line.split("|"))
        kind, *words = command.split()
        if kind == "size":
            width, height = (int(word) for word in words)
        elif kind == "group":
            x, y, w, h = (float(word) for word in words)
            under.append(f'<rect class="group" x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}" rx="12"/>')
            under.append(_text(x + 14, y + 22, "note left", shown[0]))
        elif kind == "box":
            name, (x, y, w, h) = words[0], (float(word) for word in words[1:5])
            boxes[name] = (x, y, w, h)
            look = words[5] if len(words) > 5 else "box"
            over.append(f'<rect class="{look}" x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}" rx="9"/>')
            middle, first = x + w / 2, y + h / 2 + 5 - 9 * (len(shown) - 1)
            for number, text in enumerate(shown):
                over.append(_text(middle, first + 18 * number, "note" if number else "name", text))
        elif kind == "arrow":
            points = _between(boxes[words[0]], boxes[words[1]])
            over += _arrow(points, " faint" if "faint" in words else "", shown)
        elif kind == "line":
            numbers = [float(word) for word in words if word != "faint"]
            points = list(zip(numbers[::2], numbers[1::2], strict=True))
            over += _arrow(points, " faint" if "faint" in words else "", shown)
        elif kind == "text":
            over.append(_text(float(words[0]), float(words[1]), "note left", shown[0]))
        else:
            raise ValueError(f"a diagram has no {kind!r}")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}">\n<style>{_STYLE}</style>\n'
        + "\n".join([*under, *over])
        + "\n</svg>\n"
    )


def _between(start: Box, end: Box) -> list[tuple[float, float]]:
    """From side to side, straight where boxes face each other, and with one bend where they do not."""
    (x1, y1, w1, h1), (x2, y2, w2, h2) = start, end
    left, right = max(x1, x2), min(x1 + w1, x2 + w2)
    top, bottom = max(y1, y2), min(y1 + h1, y2 + h2)
    if left < right:
        x = (left + right) / 2
        return [(x, y1 + h1), (x, y2)] if y1 < y2 else [(x, y1), (x, y2 + h2)]
    if top < bottom:
        y = (top + bottom) / 2
        return [(x1 + w1, y), (x2, y)] if x1 < x2 else [(x1, y), (x2 + w2, y)]
    x, y = x2 + w2 / 2, y1 + h1 / 2
    return [(x1 + w1 if x1 < x2 else x1, y), (x, y), (x, y2 if y1 < y2 else y2 + h2)]


def _arrow(points: list[tuple[float, float]], faint: str, shown: list[str]) -> list[str]:
    (x0, y0), (x, y) = points[-2:]
    length = max(abs(x - x0), abs(y - y0)) or 1.0
    dx, dy = (x - x0) / length, (y - y0) / length
    path = " ".join(f"{px:g},{py:g}" for px, py in [*points[:-1], (x - 7 * dx, y - 7 * dy)])
    left, right = (x - 9 * dx - 5 * dy, y - 9 * dy + 5 * dx), (x - 9 * dx + 5 * dy, y - 9 * dy - 5 * dx)
    head = " ".join(f"{px:g},{py:g}" for px, py in ((x, y), left, right))
    pieces = [f'<polyline class="arrow{faint}" points="{path}"/>', f'<polygon class="head" points="{head}"/>']
    if shown:
        (ax, ay), (bx, by) = max(pairwise(points), key=_length)
        mx, my = (ax + bx) / 2, (ay + by) / 2
        wide = 6.4 * len(shown[0]) + 10
        if ax != bx:
            my -= 12
        pieces.append(
            f'<rect class="back" x="{mx - wide / 2:g}" y="{my - 9:g}" width="{wide:g}" height="18" rx="4"/>'
        )
        pieces.append(_text(mx, my + 4, "note", shown[0]))
    return pieces


def _length(stretch: tuple[tuple[float, float], tuple[float, float]]) -> float:
    (ax, ay), (bx, by) = stretch
    return abs(ax - bx) + abs(ay - by)


def _text(x: float, y: float, look: str, text: str) -> str:
    return f'<text class="{look}" x="{x:g}" y="{y:g}">{html.escape(text)}</text>'


def main() -> None:
    for path in sorted(DIAGRAMS.glob("*.txt")):
        path.with_suffix(".svg").write_text(drawn(path.read_text()))


if __name__ == "__main__":
    main()
