"""A chat in the terminal: answers appear as they are generated, and Ctrl-C stops one.

Usage: python chat.py [MODEL]
"""

from __future__ import annotations

import os
import sys

from penstock import Client, Delta, Finished, Message, PenstockClientError, Sampling

TARGET = os.environ.get("PENSTOCK_TARGET", "127.0.0.1:50051")
API_KEY = os.environ.get("PENSTOCK_API_KEY")


def answer(client: Client, model: str, messages: list[Message]) -> str:
    """Print the answer as it comes, and return it."""
    text = ""
    # Leaving the block closes the stream, and so cancels the request.
    with client.stream(model, messages, Sampling(max_tokens=256)) as stream:
        try:
            for event in stream:
                if isinstance(event, Delta):
                    text += event.text
                    print(event.text, end="", flush=True)
                elif isinstance(event, Finished):
                    print(f"\n[{event.usage.output_tokens} tokens]")
        except KeyboardInterrupt:
            print("\n[stopped]")
    return text


def main() -> None:
    """Ask, answer, remember, until the end of the input."""
    model = sys.argv[1] if len(sys.argv) > 1 else "demo"
    messages: list[Message] = []
    with Client(TARGET, api_key=API_KEY) as client:
        while True:
            try:
                question = input("> ")
            except (EOFError, KeyboardInterrupt):
                return
            asked = [*messages, Message("user", question)]
            try:
                text = answer(client, model, asked)
            except PenstockClientError as error:
                print(f"{error.code.name}: {error}", file=sys.stderr)
                # A word such as QUEUE_FULL; empty where no router answered.
                if error.reason:
                    print(f"  reason: {error.reason}", file=sys.stderr)
                for violation in error.details.violations:
                    print(f"  {violation.field}: {violation.description}", file=sys.stderr)
                if error.retry_after is not None:
                    print(f"  try again in {error.retry_after:.1f} s", file=sys.stderr)
                continue
            messages = [*asked, Message("assistant", text)]


if __name__ == "__main__":
    main()
