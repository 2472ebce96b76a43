"""Answers every line of a file in the background, and writes question and answer as CSV.

Usage: python batch.py QUESTIONS.txt ANSWERS.csv [MODEL]

Run it again after an interruption: the same file is the same job, so nothing is generated twice.
"""

from __future__ import annotations

import csv
import hashlib
import os
import sys
from pathlib import Path

from penstock import Client, JobItem, Message, Sampling

TARGET = os.environ.get("PENSTOCK_TARGET", "127.0.0.1:50051")
API_KEY = os.environ.get("PENSTOCK_API_KEY")


def main() -> int:
    """Submit the job, or find it again, and write its results."""
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    source, output, *rest = sys.argv[1:]
    model = rest[0] if rest else "demo"
    questions = Path(source).read_text(encoding="utf-8").splitlines()
    items = [
        JobItem(str(number), [Message("user", question)], Sampling(max_tokens=64))
        for number, question in enumerate(questions)
    ]
    key = hashlib.sha256("\n".join([model, *questions]).encode()).hexdigest()
    failed = 0
    with Client(TARGET, api_key=API_KEY) as client, Path(output).open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file)
        table.writerow(["question", "answer", "error"])
        job = client.submit_job(model, items, idempotency_key=key)
        # Results come in the order of completion. A lost connection is opened again.
        for update in client.watch_job(job.job_id):
            for result in update.results:
                question = questions[int(result.custom_id)]
                if result.completion is not None:
                    table.writerow([question, result.completion.text, ""])
                else:
                    failed += 1
                    table.writerow([question, "", result.error and result.error.reason])
            print(f"\r{update.job.finished_items} of {len(items)}", end="", file=sys.stderr)
    print(file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
