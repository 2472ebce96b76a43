"""API keys of a test's tenants."""

from __future__ import annotations

from pathlib import Path

from router.identity.new_key import KeyPlan, add_key


class Keys:
    """The keys of the stack's tenants."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.acme = add_key(path, KeyPlan("acme"))
        self.acme_too = add_key(path, KeyPlan("acme"))
        self.other = add_key(path, KeyPlan("other"))
        self.narrow = add_key(path, KeyPlan("acme", models=("demo",), classes=("batch",)))
        self.admin = add_key(path, KeyPlan("root", role="admin"))
        self.operator = add_key(path, KeyPlan("ops", role="operator"))


def bearer(key: str) -> tuple[tuple[str, str], ...]:
    """Return a call's metadata."""
    return (("authorization", f"Bearer {key}"),)
