"""Content digests that replicas publish and routers verify."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

TOKENIZER_FILE, CONFIG_FILE, TEMPLATE_FILE = "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"
TOKENIZER_FILES = (TOKENIZER_FILE, CONFIG_FILE, TEMPLATE_FILE)
"""Files that decide how a prompt becomes token ids. Replicas write them; those that exist are digested and sent to
routers."""


def tokenizer_digest(files: Mapping[str, bytes]) -> str:
    """Return the SHA-256 over names and contents in name order, in hex.

    Every name and content is preceded by its length, so that moving bytes from one file to the next changes the digest.
    """
    digest = hashlib.sha256()
    for name in sorted(files):
        for part in (name.encode(), files[name]):
            digest.update(len(part).to_bytes(8, "big"))
            digest.update(part)
    return digest.hexdigest()
