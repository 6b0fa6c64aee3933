"""Draw the diagrams of the documents, each on a ground of its own so that it is legible in dark and in light.

python docs/pictures/draw.py docs/pictures
"""

import sys
from html import escape
from pathlib import Path

INK, PAPER, LINE = "#1f2733", "#fbfcfe", "#5b6675"
HOST, GUEST, COORDINATOR, GREY = "#dcebff", "#dff3e2", "#fdebcf", "#eceff4"


class Picture:
    """A diagram that grows by boxes, arrows and words; lengths are in pixels."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self.parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
            f'aria-label="{escape(title)}" font-family="Helvetica,Arial,\'DejaVu Sans\',sans-serif" font-size="14">',
            f'<rect width="{width}" height="{height}" rx="8" fill="{PAPER}" stroke="#c9d0da"/>',
            '<defs><marker id="a" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="8" markerHeight="8" '
            f'orient="auto-start-reverse"><path d="M0 0 10 5 0 10z" fill="{LINE}"/></marker></defs>',
        ]

    def words(
        self, x: float, y: float, text: str, *, at: str = "middle", bold: bool = False, small: bool = False
    ) -> None:
        """A line of text; `at` is the end by which x holds it."""
        style = (' font-weight="bold"' if bold else "") + (' font-size="12.5"' if small else "")
        self.parts.append(f'<text x="{x}" y="{y}" text-anchor="{at}" fill="{INK}"{style}>{escape(text)}</text>')

    def box(self, x: float, y: float, width: float, height: float, lines: list[str], fill: str = GREY) -> None:
        """A box with lines of text in its middle, the first one bold."""
        self.parts.append(
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="6" fill="{fill}" stroke="{LINE}"/>'
        )
        top = y + height / 2 - 9 * (len(lines) - 1) + 5
        for i, line in enumerate(lines):
            self.words(x + width / 2, top + 18 * i, line, bold=i == 0, small=i > 0)

    def arrow(self, x1: float, y1: float, x2: float, y2: float, *, both: bool = False, dashed: bool = False) -> None:
        """A line with a head at its end, or at both."""
        ends = 'marker-end="url(#a)"' + (' marker-start="url(#a)"' if both else "")
        dashes = ' stroke-dasharray="5 4"' if dashed else ""
        self.parts.append(f'<path d="M{x1} {y1} {x2} {y2}" stroke="{LINE}" stroke-width="1.5"{dashes} {ends}/>')

    def text(self) -> str:
        """The SVG."""
        return "\n".join([*self.parts, "</svg>", ""])


def parties() -> Picture:
    """What the three send each other in a round."""
    picture = Picture(760, 300, "The host and the guest exchange encrypted values; the coordinator decrypts sums")
    picture.box(20, 30, 200, 80, ["host", "features"], HOST)
    picture.box(540, 30, 200, 80, ["guest", "features and labels"], GUEST)
    picture.box(260, 210, 240, 70, ["coordinator", "private key, no data"], COORDINATOR)
    picture.arrow(220, 52, 540, 52)
    picture.words(380, 44, "[scores of its features]", small=True)
    picture.arrow(540, 90, 220, 90)
    picture.words(380, 82, "[residuals]", small=True)
    picture.arrow(90, 110, 270, 210)
    picture.words(152, 165, "[sums over the", at="end", small=True)
    picture.words(182, 182, "batch], masked", at="end", small=True)
    picture.arrow(300, 210, 150, 110, dashed=True)
    picture.words(258, 148, "its part of", at="start", small=True)
    picture.words(272, 165, "the step", at="start", small=True)
    picture.arrow(670, 110, 490, 210)
    picture.words(608, 165, "[sums over the", at="start", small=True)
    picture.words(578, 182, "batch], masked", at="start", small=True)
    picture.arrow(460, 210, 610, 110, dashed=True)
    picture.words(502, 148, "its part of", at="end", small=True)
    picture.words(488, 165, "the step", at="end", small=True)
    picture.words(24, 280, "[ ] encrypted", at="start", small=True)
    return picture


def training_round() -> Picture:
    """The messages of a round, from top to bottom."""
    picture = Picture(760, 400, "The messages of one round between host, coordinator and guest")
    columns = {"A": 110, "C": 380, "B": 650}
    for key, name, fill in (("A", "host A", HOST), ("C", "coordinator C", COORDINATOR), ("B", "guest B", GUEST)):
        picture.box(columns[key] - 80, 16, 160, 36, [name], fill)
        picture.parts.append(f'<path d="M{columns[key]} 52V384" stroke="{LINE}" stroke-dasharray="3 4"/>')
    for y, start, end, label in (
        (90, "C", "A", "previous step; begin round k"),
        (90, "C", "B", "previous step; begin round k"),
        (150, "A", "B", "[u_A] packed, [sum u_A²]"),
        (210, "B", "A", "[d'] = [u_A + u_B - 2y], re-randomised"),
        (270, "A", "C", "X_A' [d'], masked"),
        (270, "B", "C", "X_B' [d'] and the loss, masked"),
    ):
        a, b = columns[start], columns[end]
        picture.arrow(a, y, b, y)
        # The words of a line that crosses the middle stand beside it.
        picture.words((a + b) / 2 if "C" in (start, end) else 250, y - 8, label, small=True)
    picture.box(215, 305, 330, 60, ["coordinator", "decrypts the middle slots, asks the optimiser"], COORDINATOR)
    return picture


def shares_round() -> Picture:
    """The messages of a round on shares, from top to bottom."""
    picture = Picture(760, 520, "The messages of one round on shares between host, coordinator and guest")
    columns = {"A": 110, "C": 380, "B": 650}
    for key, name, fill in (("A", "host A", HOST), ("C", "coordinator C", COORDINATOR), ("B", "guest B", GUEST)):
        picture.box(columns[key] - 80, 16, 160, 36, [name], fill)
        picture.parts.append(f'<path d="M{columns[key]} 52V504" stroke="{LINE}" stroke-dasharray="3 4"/>')
    for y, start, end, label in (
        (90, "C", "A", "shares of w"),
        (90, "C", "B", "shares of w"),
        (150, "C", "A", "corrections for waves of r"),
        (150, "C", "B", "corrections for waves of r"),
        (210, "A", "B", "z_1, scores under a mask"),
        (250, "B", "A", "z_2, scores under a mask"),
        (310, "A", "B", "d_1 - e_1, residuals under a mask"),
        (350, "B", "A", "d_2 - e_2, residuals under a mask"),
        (400, "A", "C", "sums, masked and rounded"),
        (400, "B", "C", "sums, masked and rounded"),
    ):
        a, b = columns[start], columns[end]
        picture.arrow(a, y, b, y)
        # The words of a line that crosses the middle stand beside it.
        picture.words((a + b) / 2 if "C" in (start, end) else 250, y - 8, label, small=True)
    picture.box(215, 430, 330, 60, ["coordinator", "opens gradient and loss, asks the optimiser"], COORDINATOR)
    return picture


def connections() -> Picture:
    """Who connects to whom among three organisations."""
    picture = Picture(760, 300, "Each server connects to the two others; commands connect to one")
    picture.box(20, 20, 270, 60, ["host", "host.insurer.example.org:50051"], HOST)
    picture.box(470, 20, 270, 60, ["guest", "guest.bank.example.org:50052"], GUEST)
    picture.box(245, 150, 270, 60, ["coordinator", "coordinator.example.net:50050"], COORDINATOR)
    picture.arrow(290, 50, 470, 50, both=True)
    picture.arrow(155, 80, 300, 150, both=True)
    picture.arrow(605, 80, 460, 150, both=True)
    picture.box(265, 248, 230, 36, ["trilateral train, watch, status"])
    picture.arrow(380, 248, 380, 210)
    picture.box(20, 160, 190, 36, ["trilateral predict, align"])
    picture.arrow(90, 160, 90, 80)
    return picture


def layers() -> Picture:
    """The packages, each above those that it may import."""
    rows = [
        ([("cli", "the commands")], GREY),
        ([("demo", "a trial on one machine")], GREY),
        ([("client, aio", "the Python API")], GREY),
        ([("host_party", ""), ("guest_party", ""), ("coordinator", "")], GUEST),
        ([("common.trial", "trials on one machine")], GREY),
        ([("common.ui", "the page in the browser")], GREY),
        ([("common.checks", "looks for problems before a training")], GREY),
        ([("common.process", "assembles one server from its parts")], COORDINATOR),
        ([("common.cost", "what a job costs"), ("common.report", "the report of each role")], GREY),
        ([("common.jobs", "the life of a job in one process")], COORDINATOR),
        ([("common.observe", "metrics, logs, traces, audit")], COORDINATOR),
        ([("common.rpc", "moves messages")], COORDINATOR),
        ([("common.data", "a party's tables, IDs, preprocessing and model")], COORDINATOR),
        ([("common.protocol", "messages and state machines: pure")], GREY),
        (
            [
                ("common.config", "checked settings"),
                ("common.paillier", "encryption: pure"),
                ("common.shares", "shares: pure"),
            ],
            GREY,
        ),
        ([("common.base", "errors, roles, files"), ("common.pb", "generated from protos/")], GREY),
    ]
    picture = Picture(760, 54 * len(rows) + 22, "The packages of trilateral, the top layer first")
    for i, (names, fill) in enumerate(rows):
        width = (720 - 12 * (len(names) - 1)) / len(names)
        for j, (name, what) in enumerate(names):
            lines = [name, what] if what else [name]
            colour = HOST if what.endswith("pure") else fill
            picture.box(20 + j * (width + 12), 14 + 54 * i, width, 44, lines, colour)
    return picture


if __name__ == "__main__":
    for name, picture in {
        "parties": parties(),
        "round": training_round(),
        "shares": shares_round(),
        "connections": connections(),
        "layers": layers(),
    }.items():
        (Path(sys.argv[1]) / f"{name}.svg").write_text(picture.text(), encoding="utf-8")
