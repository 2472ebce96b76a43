"""Helm 4 on the server: install, upgrade, rollback, uninstall of a release, with server-side apply.

What it does with each object follows helm.sh/helm (pkg/kube/client.go, `update`): who is in the new manifest is applied
or made, who was in the old one alone is deleted unless it says otherwise. Hooks are in no manifest.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field

from tests.k8s.charts import Object
from tests.k8s.ownership.server import RefusedError, Server, identity

HOOK = "helm.sh/hook"
KEEP = ("helm.sh/resource-policy", "keep")
MANAGER = "helm"


class FailedError(Exception):
    """Says why a release has failed, in Helm's words."""


@dataclass
class Release:
    """One release and its revisions."""

    server: Server
    revisions: list[list[Object]] = field(default_factory=list)
    deployed: int = 0
    """Number of the last revision that was applied without an error; 0 for none."""

    def install(self, objects: list[Object]) -> None:
        """Make a release."""
        self._run(objects, [], force=False)

    def upgrade(self, objects: list[Object], *, force: bool = False, rollback_on_failure: bool = False) -> None:
        """Bring a release to another manifest.

        Raises:
            FailedError: the server refuses an object. Those before it have changed, unless it was rolled back.
        """
        good = self.deployed
        try:
            self._run(objects, self.revisions[good - 1], force=force)
        except FailedError:
            if rollback_on_failure:
                self.rollback(good)
            raise

    def rollback(self, revision: int) -> None:
        """Apply an older revision again.

        Raises:
            FailedError: as above, or an object that the older one has exists and is not in the present one.
        """
        self._run(self.revisions[revision - 1], self.revisions[-1], force=False, hooks=False)

    def uninstall(self) -> None:
        """Delete what the last revision has."""
        for each in _manifest(self.revisions[-1]):
            if not _kept(each):
                self.server.delete(each)

    def _run(self, objects: list[Object], present: list[Object], *, force: bool, hooks: bool = True) -> None:
        self.revisions.append(copy.deepcopy(objects))
        number = len(self.revisions)
        if hooks:
            self._hooks(objects, "pre-upgrade" if present else "pre-install")
        target, old = _manifest(objects), _manifest(present)
        known = {identity(each) for each in old}
        for each in target:
            if identity(each) in self.server.kept and identity(each) not in known:
                kind, name = identity(each)
                raise FailedError(f'original object {kind} with the name "{name}" not found')
            self._apply(each, force)
        wanted = {identity(each) for each in target}
        for each in old:
            if identity(each) not in wanted and not _kept(each):
                self.server.delete(each)
        self.deployed = number

    def _hooks(self, objects: list[Object], event: str) -> None:
        for each in objects:
            # The chart looks them up, and renders none that exists.
            if event in _annotations(each).get(HOOK, "").split(",") and identity(each) not in self.server.kept:
                self._apply(each, force=False)

    def _apply(self, each: Object, force: bool) -> None:
        try:
            self.server.apply(each, MANAGER, force=force)
        except RefusedError as error:
            name = f"{each['metadata'].get('namespace', 'penstock')}/{each['metadata']['name']}"
            what = f"{each['apiVersion']}, Kind={each['kind']}"
            raise FailedError(f"conflict occurred while applying object {name} {what}: {error}") from error


def _manifest(objects: list[Object]) -> list[Object]:
    return [each for each in objects if HOOK not in _annotations(each)]


def _annotations(each: Object) -> dict[str, str]:
    return each["metadata"].get("annotations") or {}


def _kept(each: Object) -> bool:
    return KEEP in _annotations(each).items()
