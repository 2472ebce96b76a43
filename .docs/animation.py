"""An animated SVG of a terminal. It loops, follows the reader's light or dark theme, and shows its end where there is
no animation.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from xml.sax.saxutils import escape

from terminal import Line

LONGEST_WAIT_S = 2.5
"""A wait between two lasting lines is shown in no more time."""
STEP_S = 0.3
"""Spinners and counters move in such steps."""
HOLD_S = 6.0
"""The end stays for so long before the picture starts again."""
CELL_W, CELL_H, PAD, BAR = 8.0, 18, 14, 30
"""Width and height of a character, the margin, and the height of the title, in pixels."""
SPINNER = re.compile("[\u2800-\u28ff] ")

STYLE = """
.f{fill:#f6f8fa;stroke:#d1d9e0}.o{fill:#d1d9e0}
text{font:13px ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace;fill:#1f2328;white-space:pre}
.b{font-weight:600}.d{fill:#59636e}.i{font-style:italic}.r{fill:#d1242f}.g{fill:#1a7f37}.y{fill:#9a6700}.u{fill:#0969da}
.m{fill:#8250df}.c{fill:#0a7480}
@media(prefers-color-scheme:dark){.f{fill:#0d1117;stroke:#3d444d}.o{fill:#3d444d}text{fill:#e6edf3}.d{fill:#9198a1}
.r{fill:#ff7b72}.g{fill:#3fb950}.y{fill:#d29922}.u{fill:#4493f8}.m{fill:#ab7df8}.c{fill:#39c5cf}}
"""


@dataclass(frozen=True)
class Frame:
    """What the terminal showed from a time on, in seconds."""

    when: float
    lines: tuple[Line, ...]


def shortened(frames: list[Frame]) -> list[Frame]:
    """Return the frames on the picture's own clock, without most turns of spinners."""
    shown: list[Frame] = []
    now = 0.0
    groups = [list(group) for _, group in itertools.groupby(frames, key=_lasting)]
    for group, following in itertools.zip_longest(groups, groups[1:]):
        until = following[0].when if following else group[-1].when
        real = until - group[0].when
        wait = min(real, LONGEST_WAIT_S)
        due = 0.0
        for frame in group:
            at = (frame.when - group[0].when) * (wait / real if real else 1.0)
            if at >= due:
                shown.append(Frame(now + at, frame.lines))
                due = at + STEP_S
        now += wait
    return shown


def draw(frames: list[Frame], columns: int, title: str) -> str:
    """Return the picture."""
    frames = shortened(frames)
    whole = frames[-1].when + HOLD_S
    rows = max(number for frame in frames for number, line in enumerate(frame.lines, 1) if line)
    width, height = round(columns * CELL_W + 2 * PAD), BAR + rows * CELL_H + PAD
    texts, rules = [], {}
    for row in range(rows):
        baseline = BAR + (row + 1) * CELL_H - 4
        for line, start, end in _intervals(frames, row):
            last = end is None
            span = (start / whole * 100, 100.0 if last else end / whole * 100)
            name = rules.setdefault(span, f"k{len(rules)}") if span != (0.0, 100.0) else ""
            marks = " ".join(word for word in (name, "" if last else "x") if word)
            texts.append(f"<g{_classes(marks)}>{_text(line, baseline)}</g>")
    animations = "".join(_rule(name, *span, whole) for span, name in rules.items())
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-labelledby="title desc">\n<title id="title">{escape(title)}</title>\n'
        f'<desc id="desc">{escape(_words(frames[-1]))}</desc>\n'
        f"<style>{STYLE}.x{{visibility:hidden}}\n"
        f"@media(prefers-reduced-motion:no-preference){{{animations}}}</style>\n"
        f'<rect class="f" x=".5" y=".5" width="{width - 1}" height="{height - 1}" rx="8"/>\n'
        + "".join(f'<circle class="o" cx="{PAD + 5 + 16 * number}" cy="16" r="5"/>' for number in range(3))
        + f'<text class="d" x="{width / 2:g}" y="20" text-anchor="middle">{escape(title)} (waits shortened)</text>\n'
        + "\n".join(texts)
        + "\n</svg>\n"
    )


def _lasting(frame: Frame) -> tuple[str, ...]:
    """Return the lines without those that a spinner begins."""
    texts = ("".join(character for character, _ in line) for line in frame.lines)
    return tuple(text for text in texts if text and not SPINNER.match(text))


def _intervals(frames: list[Frame], row: int) -> list[tuple[Line, float, float | None]]:
    """Return what a row showed, from when until when; None is the end."""
    found = []
    runs = [list(group) for _, group in itertools.groupby(frames, key=lambda frame: frame.lines[row])]
    for run, following in itertools.zip_longest(runs, runs[1:]):
        if run[0].lines[row]:
            found.append((run[0].lines[row], run[0].when, following[0].when if following else None))
    return found


def _text(line: Line, baseline: int) -> str:
    """Return a line as texts of one style each. `textLength` holds them to the grid, whatever font there is."""
    pieces = []
    column = 0
    for style, cells in itertools.groupby(line, key=lambda cell: cell[1]):
        text = "".join(character for character, _ in cells)
        inner = text.strip()
        if inner:
            x = PAD + (column + len(text) - len(text.lstrip())) * CELL_W
            place = f'x="{x:g}" y="{baseline}" textLength="{len(inner) * CELL_W:g}"'
            pieces.append(f"<text{_classes(style)} {place}>{escape(inner)}</text>")
        column += len(text)
    return "".join(pieces)


def _classes(names: str) -> str:
    return f' class="{names}"' if names else ""


def _rule(name: str, start: float, end: float, whole: float) -> str:
    """Return the animation that shows something between two percentages of the whole time."""
    steps = [f"{start:.2f}%{{visibility:visible}}"]
    if start > 0:
        steps.insert(0, "0%{visibility:hidden}")
    if end < 100:
        steps.append(f"{end:.2f}%{{visibility:hidden}}")
    return f"@keyframes {name}{{{''.join(steps)}}}.{name}{{animation:{name} {whole:.1f}s step-end infinite}}\n"


def _words(frame: Frame) -> str:
    """Return the last screen for readers that do not see it."""
    lines = ("".join(character for character, _ in line) for line in frame.lines)
    spoken = (" ".join(re.sub("[\u2500-\u257f]", " ", line).split()) for line in lines)
    return "The last screen: " + "\n".join(line for line in spoken if line)
