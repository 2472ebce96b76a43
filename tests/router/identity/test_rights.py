"""What callers may do."""

from __future__ import annotations

import pytest

from cluster.errors import PermissionDeniedError
from penstock.models import RequestClass
from penstock.v1 import admin_pb2, inference_pb2
from router.identity import ANONYMOUS, Caller, Role, may_use, minimum_role, require_class, require_model, require_role


def test_every_method_has_the_role_that_was_decided_for_it() -> None:
    """A new method of AdminService takes the highest role until somebody decides otherwise, here too."""
    inference = inference_pb2.DESCRIPTOR.services_by_name["InferenceService"]
    admin = admin_pb2.DESCRIPTOR.services_by_name["AdminService"]

    assert {Role.USER} == {minimum_role(inference.name, method.name) for method in inference.methods}
    lower = {method.name: minimum_role(admin.name, method.name) for method in admin.methods}
    assert {
        "GetClusterStatus": Role.TENANT_OPERATOR,
        "GetUsage": Role.USER,
        "GetCosts": Role.OPERATOR,
        "ListDecisions": Role.OPERATOR,
        "SetOperatingPoint": Role.ADMIN,
        "Explain": Role.USER,
        "ListRequests": Role.USER,
        "WhoAmI": Role.USER,
        "ListRegistry": Role.TENANT_OPERATOR,
        "EditRegistry": Role.TENANT_OPERATOR,
        "ListRegistryChanges": Role.TENANT_OPERATOR,
        "CreateKey": Role.TENANT_OPERATOR,
        "StartRollout": Role.ADMIN,
        "GetRollout": Role.OPERATOR,
        "ChangeRollout": Role.ADMIN,
        "AnnounceLoad": Role.USER,
        "ListAnnouncedLoad": Role.USER,
        "WithdrawAnnouncedLoad": Role.USER,
        "GetOutlook": Role.OPERATOR,
    } == lower
    assert Role.ADMIN is minimum_role("AdminService", "Anything")


@pytest.mark.parametrize("role", Role)
@pytest.mark.parametrize("needed", Role)
def test_a_role_includes_the_ones_below(role: Role, needed: Role) -> None:
    caller = Caller("acme", role)
    if role >= needed:
        require_role(caller, needed, "A/B")
        return
    with pytest.raises(
        PermissionDeniedError, match=f"method 'A/B' is not allowed .*'acme'.* role {needed.name.lower()}"
    ):
        require_role(caller, needed, "A/B")


@pytest.mark.parametrize("method", ["AdminService/EditRegistry", "AdminService/CreateKey"])
def test_an_error_lists_no_role_that_may_not_do_it_either(method: str) -> None:
    """Operators look at everything and change nothing, so that they are not among those that a user may ask for."""
    with pytest.raises(PermissionDeniedError, match=r"allowed: role tenant_operator, role admin$"):
        require_role(Caller("acme"), Role.TENANT_OPERATOR, method)
    with pytest.raises(PermissionDeniedError, match=r"allowed: role tenant_operator, role operator, role admin$"):
        require_role(Caller("acme"), Role.TENANT_OPERATOR, "AdminService/ListRegistry")


def test_models_and_classes_are_all_or_named() -> None:
    free, bound, nothing = (
        ANONYMOUS,
        Caller("a", models=frozenset("mn"), classes=frozenset({RequestClass.BATCH})),
        Caller("a", models=frozenset()),
    )
    require_model(free, "x")
    require_class(free, RequestClass.INTERACTIVE)
    require_model(bound, "m")
    require_class(bound, RequestClass.BATCH)

    assert (True, False, False) == (may_use(bound, "n"), may_use(bound, "x"), may_use(nothing, "m"))
    with pytest.raises(PermissionDeniedError, match=r"model 'x' is not allowed .*; allowed: m, n$"):
        require_model(bound, "x")
    with pytest.raises(PermissionDeniedError, match=r"class 'standard' is not allowed .*; allowed: batch$"):
        require_class(bound, RequestClass.STANDARD)
    with pytest.raises(PermissionDeniedError, match=r"allowed: none$"):
        require_model(nothing, "m")
