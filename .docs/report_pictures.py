"""Takes the pictures of reports for the manual of load tests. `make report-pictures` runs it.

The load test runs on a cluster in this process, with a simulated engine. Chromium takes the pictures.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

from tests.support.stack import running_stack

ROOT = Path(__file__).resolve().parents[1]
PICTURES = ROOT / ".docs" / "pictures"
PENSTOCK = (sys.executable, "-c", "import sys; from cluster.cli.main import main; sys.exit(main())")
LOADTEST = (
    "--scenario chat --rate 6 --duration 60 --prompt-tokens 300 --output-tokens 80 --slo-ttft 0.5"
    " --assert ttft_p99<500ms,itl_p95<50ms,goodput>0.99"
)
SIMULATE = "--trace sample --max-num-seqs 8 --base-ms 40 --cold-start 60"
PLAN = (
    "--model llama-3.1-70b --gpu h100,h200 --price h100=2.5 --price h200=3.8 --currency USD --precision bf16,fp8"
    " --rate 20 --slo-ttft 2 --slo-itl 0.1 --no-store"
)


async def run(*words: str) -> None:
    """Run a command of ours. A bound that is broken is no failure."""
    child = await asyncio.create_subprocess_exec(*PENSTOCK, *words)
    if await child.wait() > 1:
        raise SystemExit(f"failed: penstock {' '.join(words)}")


async def make(folder: Path) -> None:
    """Write the three reports."""
    async with running_stack(folder / "state", sim={"base_ms": 12.0, "max_num_seqs": 16}) as stack:
        target = ("--target", f"127.0.0.1:{stack.routers[0].port}")
        await run("loadtest", *LOADTEST.split(), *target, "--report", str(folder / "loadtest"))
    await run("simulate", *SIMULATE.split(), "--html", str(folder / "simulate.html"))
    await run("plan", *PLAN.split(), "--html", str(folder / "plan.html"))


def take(page: Path, height: int) -> None:
    """Take the picture of a page's beginning, in the light scheme."""
    picture = PICTURES / f"report-{page.stem}.png"
    flags = ("--headless", "--no-sandbox", "--hide-scrollbars", "--blink-settings=preferredColorScheme=1")
    subprocess.run(
        ["chromium", *flags, f"--window-size=1140,{height}", f"--screenshot={picture}", page.as_uri()],
        check=True,
        stderr=subprocess.DEVNULL,
    )
    # A page has few colours.
    with Image.open(picture) as image:
        image.convert("RGB").quantize(128).save(picture, optimize=True)


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        asyncio.run(make(folder))
        for stem, height in (("loadtest", 960), ("simulate", 1060), ("plan", 900)):
            take(folder / f"{stem}.html", height)


if __name__ == "__main__":
    main()
