"""A terminal's screen, as far as the output of `penstock demo` needs one: text, colours, and a cursor that moves."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

Cell = tuple[str, str]
"""A character and its style: names of classes, such as "b g" for bold green."""
Line = tuple[Cell, ...]

BLANK: Cell = (" ", "")
CODES = {1: "b", 2: "d", 3: "i", 31: "r", 32: "g", 33: "y", 34: "u", 35: "m", 36: "c"}
"""Classes of SGR codes that set something. Bright colours (90 to 97) count as the plain ones."""
SEQUENCE = re.compile(r"\x1b\[([?0-9;]*)([A-Za-z])")


@dataclass
class Screen:
    """Screen of a terminal that never scrolls: `rows` must hold all output."""

    columns: int
    rows: int
    row: int = 0
    column: int = 0
    style: frozenset[str] = frozenset()
    cells: list[list[Cell]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.cells = [[BLANK] * self.columns for _ in range(self.rows)]

    def feed(self, text: str) -> str:
        """Show output. Return its end where that is the beginning of an escape sequence.

        Raises:
            ValueError: the output needs more rows.
        """
        place = 0
        while place < len(text):
            if text[place] != "\x1b":
                self._put(text[place])
                place += 1
            elif found := SEQUENCE.match(text, place):
                self._control(found[1], found[2])
                place = found.end()
            elif len(text) - place < 16:
                return text[place:]
            else:
                place += 1
        return ""

    def lines(self) -> tuple[Line, ...]:
        """Return the rows without blanks at their ends."""
        return tuple(_stripped(row) for row in self.cells)

    def _put(self, character: str) -> None:
        if character == "\r":
            self.column = 0
        elif character == "\n":
            self._down()
        elif character >= " ":
            if self.column == self.columns:
                self.column = 0
                self._down()
            self.cells[self.row][self.column] = (character, " ".join(sorted(self.style)))
            self.column += 1

    def _down(self) -> None:
        self.row += 1
        if self.row == self.rows:
            raise ValueError(f"the output has more than {self.rows} lines")

    def _control(self, argument: str, final: str) -> None:
        numbers = [int(number) for number in re.findall(r"\d+", argument)]
        count = numbers[0] if numbers else 0
        if final == "m":
            self._style(numbers or [0])
        elif final == "A":
            self.row = max(0, self.row - max(1, count))
        elif final == "B":
            self.row = min(self.rows - 1, self.row + max(1, count))
        elif final == "C":
            self.column = min(self.columns - 1, self.column + max(1, count))
        elif final == "D":
            self.column = max(0, self.column - max(1, count))
        elif final == "G":
            self.column = max(1, count) - 1
        elif final == "K":
            first = 0 if count == 2 else self.column
            self.cells[self.row][first:] = [BLANK] * (self.columns - first)

    def _style(self, codes: list[int]) -> None:
        for code in codes:
            plain = code - 60 if 90 <= code <= 97 else code
            if code == 0:
                self.style = frozenset()
            elif plain in CODES:
                colours = {name for number, name in CODES.items() if number >= 30} if plain >= 30 else set()
                self.style = (self.style - colours) | {CODES[plain]}
            elif code == 22:
                self.style -= {"b", "d"}
            elif code == 39:
                self.style -= {name for number, name in CODES.items() if number >= 30}


def _stripped(row: list[Cell]) -> Line:
    end = len(row)
    while end and row[end - 1][0] == " ":
        end -= 1
    return tuple(row[:end])
