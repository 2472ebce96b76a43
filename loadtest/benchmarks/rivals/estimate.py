"""Answers of AIConfigurator, for `loadtest.benchmarks.rivals.asking`.

This runs in a Python that has that package and nothing of Penstock. Each line of standard input is a JSON object with
the arguments of a question; each line of standard output is the answer. The first line tells the version.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import sys
from importlib.metadata import version


def main() -> None:
    answers = sys.stdout

    def say(**answer: object) -> None:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    # The package prints while it is imported and while it works.
    with contextlib.redirect_stdout(sys.stderr):
        estimate = importlib.import_module("aiconfigurator.cli.api").cli_estimate
        say(version=version("aiconfigurator"))
        for line in sys.stdin:
            try:
                found = estimate(**json.loads(line))
                say(ttft_ms=float(found.ttft), tpot_ms=float(found.tpot))
            except Exception as error:  # noqa: BLE001 - what one question meets must not end the others
                say(why=(str(error).strip() or type(error).__name__).splitlines()[0])


if __name__ == "__main__":
    main()
