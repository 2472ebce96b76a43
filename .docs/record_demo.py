"""Records `penstock demo` in a terminal and draws it as an animated picture. `make demo-svg` runs it.

Usage: record_demo.py [--from RECORDING]

The recording is written to out/demo.json (times in seconds and output), the picture to .docs/pictures/demo.svg.
"""

from __future__ import annotations

import codecs
import fcntl
import json
import os
import pty
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

from animation import Frame, draw
from terminal import Screen

ROOT = Path(__file__).resolve().parents[1]
RECORDING = ROOT / "out" / "demo.json"
PICTURE = ROOT / ".docs" / "pictures" / "demo.svg"
COLUMNS, ROWS = 80, 60
COMMAND = "penstock demo"

Recording = list[tuple[float, str]]
"""Output of the command, each piece with the seconds since the start."""


def record() -> Recording:
    """Run the demo in a pseudo terminal.

    Raises:
        subprocess.CalledProcessError: the demo failed.
    """
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    # Folders first on the path as in an activated environment; colours whatever terminal runs this script.
    environment = {
        **{name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")},
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "TERM": "xterm-256color",
    }
    began = time.monotonic()
    process = subprocess.Popen(COMMAND.split(), stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    decoder = codecs.getincrementaldecoder("utf-8")()
    pieces: Recording = []
    while True:
        try:
            read = os.read(ours, 65536)
        except OSError:
            # What Linux says when the last writer has gone.
            break
        pieces.append((round(time.monotonic() - began, 3), decoder.decode(read)))
    os.close(ours)
    if status := process.wait():
        sys.stderr.write("".join(text for _, text in pieces[-20:]))
        raise subprocess.CalledProcessError(status, COMMAND)
    return pieces


def frames(recording: Recording) -> list[Frame]:
    """Return what the terminal showed, and when."""
    screen = Screen(COLUMNS, ROWS)
    screen.feed(f"\x1b[2m$\x1b[0m \x1b[1m{COMMAND}\x1b[0m\r\n")
    shown = [Frame(0.0, screen.lines())]
    rest = ""
    for when, text in recording:
        rest = screen.feed(rest + text)
        shown.append(Frame(when, screen.lines()))
    return shown


def main() -> int:
    """Run the command line."""
    if sys.argv[1:2] == ["--from"]:
        recording = [(when, text) for when, text in json.loads(Path(sys.argv[2]).read_text(encoding="utf-8"))]
    else:
        recording = record()
        RECORDING.parent.mkdir(exist_ok=True)
        RECORDING.write_text(json.dumps(recording), encoding="utf-8")
    PICTURE.write_text(draw(frames(recording), COLUMNS, COMMAND), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
