"""Runs a file of requests in OpenAI's batch format with OpenAI's SDK, and writes the results.

Usage: python openai_batch.py REQUESTS.jsonl RESULTS.jsonl [ENDPOINT]

Lines that failed are written after the others, and the exit status is 1. Ctrl-C cancels the batch.
"""

from __future__ import annotations

import hashlib
import os
import sys
import time
from pathlib import Path
from typing import Any

from openai import OpenAI

BASE_URL = os.environ.get("PENSTOCK_HTTP", "http://127.0.0.1:8000/v1")
API_KEY = os.environ.get("PENSTOCK_API_KEY", "none")
ENDED = ("completed", "failed", "expired", "cancelled")


def main() -> int:
    """Upload the file, run the batch, and write its results."""
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    source, target, *rest = sys.argv[1:]
    endpoint: Any = rest[0] if rest else "/v1/chat/completions"
    with OpenAI(base_url=BASE_URL, api_key=API_KEY) as client:
        with Path(source).open("rb") as requests:
            key = hashlib.file_digest(requests, "sha256").hexdigest()
            requests.seek(0)
            file = client.files.create(file=requests, purpose="batch")
        # The key keeps a repetition after a lost answer from running everything twice.
        batch = client.batches.create(
            input_file_id=file.id,
            endpoint=endpoint,
            completion_window="24h",
            extra_headers={"Idempotency-Key": f"{file.id[-20:]}-{key[:20]}"},
        )
        try:
            while batch.status not in ENDED:
                time.sleep(1)
                batch = client.batches.retrieve(batch.id)
                if batch.request_counts is not None:
                    done = batch.request_counts.completed + batch.request_counts.failed
                    print(f"\r{done} of {batch.request_counts.total}", end="", file=sys.stderr)
        except KeyboardInterrupt:
            client.batches.cancel(batch.id)
            raise
        print(file=sys.stderr)
        for error in (batch.errors and batch.errors.data) or []:
            print(error.message, file=sys.stderr)
        with Path(target).open("wb") as results:
            for file_id in (batch.output_file_id, batch.error_file_id):
                if file_id is not None:
                    with client.files.with_streaming_response.content(file_id) as answer:
                        for piece in answer.iter_bytes():
                            results.write(piece)
        # The file would be kept for 30 days otherwise.
        client.files.delete(file.id)
    return 0 if batch.status == "completed" and batch.error_file_id is None else 1


if __name__ == "__main__":
    sys.exit(main())
