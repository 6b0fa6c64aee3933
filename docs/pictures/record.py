"""Record ``trilateral demo``: ``python docs/pictures/record.py docs/pictures/demo.svg``.

The demo runs in a terminal of its own, and what it showed is drawn as an animated SVG.
"""

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import tempfile
import termios
import time
from dataclasses import dataclass, field, replace
from html import escape
from pathlib import Path

COLUMNS, ROWS = 100, 60
UNTIL = "To do the same by hand"
"""The demo ends with long commands, which are left out."""
HOLD = 10.0
"""Seconds for which the last picture stays before the recording begins again."""
FRAMES_A_SECOND = 3
CELL, LINE, MARGIN, BAR = 8.0, 18, 18, 34
INK, PAPER, DIM = "#d7dce4", "#161a22", "#8b93a3"
COLOURS = {31: "#f07178", 32: "#8fce8f", 33: "#e6c384", 34: "#7aa2f7", 35: "#c9a0dc", 36: "#7fc8c8", 37: INK}


@dataclass(frozen=True)
class Style:
    """How a character looks."""

    colour: str = INK
    bold: bool = False
    italic: bool = False

    def changed(self, codes: list[int]) -> "Style":
        """The style after the codes of an SGR sequence."""
        style, rest = self, iter(codes or [0])
        for code in rest:
            if code == 0:
                style = Style()
            elif code == 1:
                style = replace(style, bold=True)
            elif code == 2:
                style = replace(style, colour=DIM)
            elif code == 3:
                style = replace(style, italic=True)
            elif code == 38:  # one of 256 colours, or red, green and blue
                if next(rest, 0) == 5:
                    style = replace(style, colour=_indexed(next(rest, 0)))
                else:
                    style = replace(style, colour="#{:02x}{:02x}{:02x}".format(*(next(rest, 0) for _ in range(3))))
            elif code == 39:
                style = replace(style, colour=INK)
            elif code in COLOURS or code - 60 in COLOURS:
                style = replace(style, colour=COLOURS[code if code in COLOURS else code - 60])
        return style


def _indexed(number: int) -> str:
    if number >= 232:
        return "#{0:02x}{0:02x}{0:02x}".format(8 + 10 * (number - 232))
    if number >= 16:
        return "#{:02x}{:02x}{:02x}".format(*((number - 16) // step % 6 * 51 for step in (36, 6, 1)))
    return COLOURS.get(30 + number % 8, INK)


@dataclass
class Screen:
    """As much of a terminal as the demo uses: text, colours, moving up, erasing a line."""

    lines: list[dict[int, tuple[str, Style]]] = field(default_factory=lambda: [{}])
    row: int = 0
    column: int = 0
    style: Style = field(default_factory=Style)

    def feed(self, text: str) -> None:
        """Take what a program has written."""
        for sequence in re.findall(r"\x1b\[[0-9;?]*[A-Za-z]|.", text, re.DOTALL):
            if sequence.startswith("\x1b["):
                self._control(sequence[2:-1], sequence[-1])
            elif sequence == "\n":
                self.row += 1
                while len(self.lines) <= self.row:
                    self.lines.append({})
            elif sequence == "\r":
                self.column = 0
            elif sequence >= " ":
                self.lines[self.row][self.column] = (sequence, self.style)
                self.column += 1

    def _control(self, numbers: str, letter: str) -> None:
        codes = [int(number) for number in numbers.strip("?").split(";") if number]
        if letter == "m":
            self.style = self.style.changed(codes)
        elif letter == "A":
            self.row = max(0, self.row - (codes or [1])[0])
        elif letter == "K":
            line = self.lines[self.row]
            self.lines[self.row] = {} if codes == [2] else {k: v for k, v in line.items() if k < self.column}

    def shown(self) -> tuple[tuple[tuple[int, str, Style], ...], ...]:
        """Each line as runs of characters of one style: column, text, style."""
        return tuple(tuple(_runs(line)) for line in self.lines)


def _runs(line: dict[int, tuple[str, Style]]) -> list[tuple[int, str, Style]]:
    runs: list[tuple[int, str, Style]] = []
    for column in sorted(line):
        character, style = line[column]
        if runs and runs[-1][2] == style and runs[-1][0] + len(runs[-1][1]) == column:
            runs[-1] = (runs[-1][0], runs[-1][1] + character, style)
        else:
            runs.append((column, character, style))
    # Each piece has its own place: not every program that shows an SVG keeps spaces, or has this font.
    return [
        (column + piece.start(), piece[0], style)
        for column, text, style in runs
        for piece in re.finditer(r"[│┃]|[^│┃\s]+(?: [^│┃\s]+)*", text)
    ]


def record() -> list[tuple[float, str]]:
    """Run the demo, and return what it wrote with the seconds since its start."""
    program = Path(sys.executable).with_name("trilateral")
    reader, writer = pty.openpty()
    fcntl.ioctl(writer, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    environment = os.environ | {"TERM": "xterm-256color", "COLUMNS": str(COLUMNS), "LINES": str(ROWS)}
    written: list[tuple[float, str]] = []
    with tempfile.TemporaryDirectory() as folder:
        start = time.monotonic()
        process = subprocess.Popen(
            [program, "demo"], stdin=writer, stdout=writer, stderr=writer, cwd=folder, env=environment
        )
        os.close(writer)
        pending = b""
        while True:
            ready, _, _ = select.select([reader], [], [], 0.5)
            try:
                piece = os.read(reader, 65536) if ready else b""
            except OSError:  # the program has closed its terminal
                break
            if not ready and process.poll() is not None:
                break
            pending += piece
            text = pending.decode("utf-8", "ignore")
            pending = b"" if text.encode() == pending else pending[len(text.encode()) :]
            # The picture names no folder of this machine.
            written.append((time.monotonic() - start, text.replace(f"{program.parent}/", "").replace(f"{folder}/", "")))
        if process.wait():
            sys.exit("the demo has failed: " + "".join(text for _, text in written))
    return written


def frames(written: list[tuple[float, str]]) -> list[tuple[float, tuple[tuple[tuple[int, str, Style], ...], ...]]]:
    """What the terminal showed, from when on: no more pictures than `FRAMES_A_SECOND`."""
    prompt = ((0, "$ ", Style(DIM)), (2, "trilateral demo", Style(bold=True)))
    screen = Screen()
    found: list[tuple[float, tuple[tuple[tuple[int, str, Style], ...], ...]]] = [(0.0, (prompt,))]
    for moment, text in written:
        screen.feed(text.partition(UNTIL)[0])
        lines = screen.shown()
        while lines and not lines[-1]:
            lines = lines[:-1]
        picture = (prompt, *lines)
        if picture != found[-1][1]:
            if moment - found[-1][0] < 1 / FRAMES_A_SECOND and len(found) > 1:
                found[-1] = (found[-1][0], picture)
            else:
                found.append((moment, picture))
        if UNTIL in text:
            break
    return found


def draw(pictures: list[tuple[float, tuple[tuple[tuple[int, str, Style], ...], ...]]]) -> str:
    """The recording as an SVG. Where nothing moves, as in print, the last picture is shown."""
    length = pictures[-1][0] + HOLD
    width = 2 * MARGIN + COLUMNS * CELL
    height = BAR + MARGIN + LINE * max(len(lines) for _, lines in pictures)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" role="img" '
        'font-family="DejaVu Sans Mono,monospace" font-size="13.3" '
        'aria-label="A terminal in which trilateral demo trains a model and prints it">',
        "<style>",
        "text{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace}",
        ".b{font-weight:bold}.i{font-style:italic}",
    ]
    for i, (begin, _) in enumerate(pictures):
        last = i == len(pictures) - 1
        end = length if last else pictures[i + 1][0]
        at, until = 100 * begin / length, 100 * end / length
        steps = f"0%{{opacity:{int(i == 0)}}}{at:.3f}%{{opacity:1}}" + ("" if last else f"{until:.3f}%{{opacity:0}}")
        parts.append(
            f".f{i}{{opacity:{int(last)};animation:k{i} {length:.2f}s step-end infinite}}@keyframes k{i}{{{steps}}}"
        )
    parts += [
        "@media print,(prefers-reduced-motion:reduce){g{animation:none!important}}",
        "</style>",
        f'<rect width="{width:.0f}" height="{height}" rx="8" fill="{PAPER}" stroke="#3a4150"/>',
        *(
            f'<circle cx="{18 + 18 * i}" cy="17" r="5.5" fill="{colour}"/>'
            for i, colour in enumerate(("#f07178", "#e6c384", "#8fce8f"))
        ),
    ]
    for i, (_, lines) in enumerate(pictures):
        parts.append(f'<g class="f{i}">')
        for row, runs in enumerate(lines):
            parts += [_text(row, *run) for run in runs]
        parts.append("</g>")
    return "\n".join([*parts, "</svg>", ""])


def _text(row: int, column: int, text: str, style: Style) -> str:
    classes = " ".join(name for name, on in (("b", style.bold), ("i", style.italic)) if on)
    return (
        f'<text x="{MARGIN + column * CELL:.0f}" y="{BAR + 14 + LINE * row}" fill="{style.colour}"'
        + (f' class="{classes}"' if classes else "")
        + f' textLength="{len(text) * CELL:.0f}">{escape(text)}</text>'
    )


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(draw(frames(record())), encoding="utf-8")
