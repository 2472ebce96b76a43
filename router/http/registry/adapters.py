"""LoRA adapters that come and go, in vLLM's spelling. Each is an entry of the registry."""

from __future__ import annotations

from aiohttp import web
from google.protobuf.duration_pb2 import Duration

from cluster.errors import InvalidRequestError, RegistryConflictError
from penstock.models import FieldViolation
from penstock.v1 import inference_pb2 as inference
from penstock.v1 import registry_pb2 as api
from penstock.values.objects import Fields
from router.admin.servicer import AdminServicer
from router.http.calls import Calls
from router.identity import Role, require_role

LOAD_S = 60
"""Longest wait for the replicas."""
_KIND = "adapter"


class AdapterRoutes:
    """Handlers of adapters, for admins."""

    def __init__(self, calls: Calls, admin: AdminServicer) -> None:
        self._calls, self._admin = calls, admin

    def add_to(self, app: web.Application) -> None:
        app.router.add_post("/v1/load_lora_adapter", self.load)
        app.router.add_post("/v1/unload_lora_adapter", self.unload)

    async def load(self, request: web.Request) -> web.StreamResponse:
        """Load an adapter on every replica of a pool. One that no replica can load does not stay."""
        fields = Fields("", await self._calls.json(request), ignore_unknown=True)
        name, path = fields.required("lora_name"), fields.required("lora_path")
        replaces = fields.flag("load_inplace")
        edit = api.RegistryEdit(kind=_KIND, name=name, expected_version=None if replaces else 0)
        edit.value.update({"pool": await self._pool(request, fields), "source": path})
        try:
            found = await self._edit(request, edit)
        except RegistryConflictError as error:
            raise fields.wrong("lora_name", f"must be a new name without load_inplace, got {name!r}") from error
        failed = [each for each in found.adapters if each.state == "failed"]
        if failed and len(failed) == len(found.adapters):
            await self._edit(request, api.RegistryEdit(kind=_KIND, name=name), force=True)
        if failed:
            told = "; ".join(f"{each.replica}: {each.why}" for each in failed)
            raise InvalidRequestError.of("lora_path", f"must be an adapter that every replica can load; {told}")
        return web.Response(text=f"Success: LoRA adapter '{name}' added successfully.")

    async def unload(self, request: web.Request) -> web.StreamResponse:
        """Unload an adapter everywhere. It waits for the requests that use it."""
        fields = Fields("", await self._calls.json(request), ignore_unknown=True)
        name = fields.required("lora_name")
        found = await self._edit(request, api.RegistryEdit(kind=_KIND, name=name))
        if not found.differences:
            raise InvalidRequestError.of("lora_name", f"must be an adapter of the registry, got {name!r}")
        return web.Response(text=f"Success: LoRA adapter '{name}' removed successfully.")

    async def _edit(
        self, request: web.Request, edit: api.RegistryEdit, *, force: bool = False
    ) -> api.EditRegistryResponse:
        context, caller = self._calls.caller(request)
        require_role(caller, Role.ADMIN, request.path)
        asked = api.EditRegistryRequest(edits=[edit], wait=Duration(seconds=LOAD_S), force=force)
        try:
            return await self._admin.EditRegistry(asked, context, caller)
        except InvalidRequestError as error:
            raise InvalidRequestError([_renamed(each) for each in error.violations]) from error

    async def _pool(self, request: web.Request, fields: Fields) -> str:
        """Return the pool that the body names, or the only one."""
        if given := fields.text("model"):
            return given
        found = await self._calls.inference.ListModels(inference.ListModelsRequest(), *self._calls.caller(request))
        names = [model.name for model in found.models]
        if len(names) != 1:
            raise fields.wrong("model", f"must be one of {', '.join(names)}: there are several models")
        return names[0]


_FIELDS = {"edits[0].name": "lora_name", "edits[0].value.source": "lora_path", "edits[0].value.pool": "model"}


def _renamed(violation: FieldViolation) -> FieldViolation:
    return FieldViolation(_FIELDS.get(violation.field, violation.field), violation.description)
