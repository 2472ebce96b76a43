"""The role `developer` becomes `system` as in vLLM's server."""

from __future__ import annotations

from itertools import product

import pytest

from router.tokens.roles import as_said, developer_as_system
from router.validation import Message

CHATS = [
    tuple(zip(roles, "abcd", strict=False))
    for length in (1, 2, 3, 4)
    for roles in product(("system", "developer", "user"), repeat=length)
]


@pytest.mark.slow
def test_all_orders_of_roles_become_what_vllm_makes_of_them() -> None:
    server = pytest.importorskip("vllm.renderers.hf")
    for chat in (*CHATS, (("developer", ""), ("user", "b"), ("system", "c"), ("developer", ""))):
        wanted = [{"role": role, "content": content} for role, content in chat]
        if "developer" in dict(chat):
            wanted = server._consolidate_system_messages(server._convert_developer_to_system(wanted))
        said = developer_as_system(as_said([Message(*each) for each in chat]))
        assert wanted == [{"role": each.role, "content": each.content} for each in said], chat


def test_a_merged_message_stands_for_the_first_of_its_parts() -> None:
    chat = [Message("user", "a"), Message("system", "b"), Message("developer", "c"), Message("user", "d")]

    assert [("system", "b\n\nc", 1), ("user", "a", 0), ("user", "d", 3)] == [
        (each.role, each.content, each.place) for each in developer_as_system(as_said(chat))
    ]


def test_system_messages_stay_where_they_are_without_a_developer() -> None:
    chat = [Message("user", "a"), Message("system", "b")]

    assert ["user", "system"] == [each.role for each in developer_as_system(as_said(chat))]
