"""A caller, as the caller itself may see it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from penstock.models import RequestClass
from penstock.v1 import admin_pb2 as api
from penstock.wire import request_class_to_wire
from router.identity import Caller, Role, may_use
from router.identity.caller import CredentialKind

ROLES: Mapping[Role, api.Role.ValueType] = {
    Role.USER: api.ROLE_USER,
    Role.TENANT_OPERATOR: api.ROLE_TENANT_OPERATOR,
    Role.OPERATOR: api.ROLE_OPERATOR,
    Role.ADMIN: api.ROLE_ADMIN,
}
KINDS: Mapping[CredentialKind, api.CredentialKind.ValueType] = {
    CredentialKind.NONE: api.CREDENTIAL_KIND_NONE,
    CredentialKind.API_KEY: api.CREDENTIAL_KIND_API_KEY,
    CredentialKind.CERTIFICATE: api.CREDENTIAL_KIND_CERTIFICATE,
    CredentialKind.TOKEN: api.CREDENTIAL_KIND_TOKEN,
}


def who_is(caller: Caller, models: Iterable[str]) -> api.WhoAmIResponse:
    """Return who a caller is and which of the models it may use."""
    classes = RequestClass if caller.classes is None else sorted(caller.classes)
    credential = caller.credential
    found = api.WhoAmIResponse(
        tenant=caller.tenant,
        role=ROLES[caller.role],
        models=sorted(each for each in models if may_use(caller, each)),
        classes=map(request_class_to_wire, classes),
        credential_kind=KINDS[credential.kind],
        credential_name=credential.name,
    )
    if math.isfinite(credential.expires_ms):
        found.expires_at_ms = int(credential.expires_ms)
    return found
