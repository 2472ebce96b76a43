"""Who may call the console, and what its answers let a page do."""

from __future__ import annotations

import asyncio
import logging

import aiohttp
import pytest

from tests.router.console.conftest import Console, running_console
from tests.support.keys import Keys
from tests.support.stack import running_stack, sim_pool

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]

OWN = {"X-Penstock-Console": "1"}
JSON = {**OWN, "Content-Type": "application/json"}


async def status(console: Console, path: str, method: str = "GET", **options: object) -> int:
    async with aiohttp.ClientSession() as session, session.request(method, f"{console.url}{path}", **options) as answer:  # type: ignore[arg-type]
        return answer.status


async def test_a_foreign_name_is_refused_also_for_the_page(console: Console) -> None:
    """DNS rebinding: a page's own name is made to lead here."""
    for path in ("/", "/static/main.js", "/api/status"):
        assert 421 == await status(console, path, headers={**OWN, "Host": "evil.example"})
        assert 200 == await status(console, path, headers={**OWN, "Host": f"localhost:{console.port}"})


async def test_a_name_that_is_given_is_its_own(console: Console) -> None:
    async with running_console(console.stack, names=["Console.example.com"]) as named:
        assert 200 == await status(named, "/", headers={"Host": "console.EXAMPLE.com"})
        assert 200 == await status(named, "/", headers={"Host": "console.example.com:8443"})
        assert 421 == await status(named, "/", headers={"Host": "example.com"})


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {**OWN, "Origin": "https://evil.example"},
        {**OWN, "Origin": "null"},
        {**OWN, "Sec-Fetch-Site": "cross-site"},
        {**OWN, "Sec-Fetch-Site": "same-site"},
    ],
    ids=str,
)
async def test_pages_of_others_get_nothing(console: Console, headers: dict[str, str]) -> None:
    assert 403 == await status(console, "/api/status", headers=headers)
    assert 403 == await status(console, "/api/operating-point", "POST", data="{}", headers=headers)


async def test_what_is_no_request_leaves_no_trace_of_its_bytes(
    console: Console, caplog: pytest.LogCaptureFixture
) -> None:
    """A header that is broken may be a key. A browser that calls a page without TLS over it sends such, too."""
    for sent in (b"\x16\x03\x01\x02\x00\x01", b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Key psk_secret\r\n\r\n"):
        reader, writer = await asyncio.open_connection("127.0.0.1", console.port)
        writer.write(sent)
        assert b" 400 " in await reader.readline()
        writer.close()
    assert not [each for each in caplog.records if each.exc_info or each.levelno >= logging.WARNING]


async def test_a_token_may_be_as_long_as_for_routers(console: Console) -> None:
    token = f"eyJ{'a' * 16_000}.b.c"
    assert 401 == await status(console, "/api/status", headers={**OWN, "X-Penstock-Key": token})


async def test_a_number_that_no_float_can_be_is_told(console: Console) -> None:
    for body in (b'{"operating_point": {"attainment": %b}}', b'{"operating_point": {"budget_per_hour": %b}}'):
        data = body % (b"1" + b"0" * 400)
        assert 400 == await status(console, "/api/operating-point", "POST", data=data, headers=JSON)


async def test_a_form_of_another_page_changes_nothing(console: Console) -> None:
    """Forms can't send JSON, and a browser asks before a page of another origin does, which gets no permission."""
    assert 415 == await status(console, "/api/operating-point", "POST", data={"pool": "demo"}, headers=OWN)
    url = f"{console.url}/api/operating-point"
    asks = {"Origin": "https://evil.example", "Access-Control-Request-Method": "POST"}
    async with aiohttp.ClientSession() as session, session.options(url, headers=asks) as answer:
        assert not [name for name in answer.headers if name.lower().startswith("access-control")]


async def test_the_policy_lets_nothing_in_from_elsewhere_and_no_text_become_code(console: Console) -> None:
    async with aiohttp.ClientSession() as session:
        for path in ("/", "/static/main.js", "/api/status", "/nothing"):
            async with session.get(f"{console.url}{path}", headers=OWN) as answer:
                policy = dict(part.split(" ", 1) for part in answer.headers["Content-Security-Policy"].split("; "))
                assert "'none'" == policy.pop("default-src")
                assert {"'self'", "'none'", "'script'"} == set(policy.values())
                assert "'none'" == policy["frame-ancestors"]
                assert "nosniff" == answer.headers["X-Content-Type-Options"]
                assert ("no-store" if path.startswith("/api") else "no-cache") == answer.headers["Cache-Control"]


@pytest.mark.parametrize("path", ["/static/../guard.py", "/static/%2e%2e/guard.py", "/static/", "/static/views"])
async def test_only_the_pages_files_are_served(console: Console, path: str) -> None:
    assert await status(console, path) in (403, 404)


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("/api/operating-point", "[]", "JSON object"),
        ("/api/operating-point", "{", "must be JSON"),
        ("/api/operating-point", '{"pool": 3}', "pool: must be of type str, got int"),
        ("/api/operating-point", '{"pool": "demo", "operating_point": {"attainment": "x"}}', "attainment"),
        ("/api/operating-point", '{"pool": "none", "operating_point": null}', "none of demo, other"),
        ("/api/chat", '{"model": "demo", "messages": [{"role": "user"}, 3]}', "prompt"),
        ("/api/chat", '{"model": "demo", "prompt": "a", "request_class": "now"}', "request_class: must be one of"),
        ("/api/chat", '{"model": "demo", "prompt": "a", "sampling": {"temprature": 1}}', "temperature"),
    ],
)
async def test_bad_input_is_named(console: Console, path: str, body: str, words: str) -> None:
    async with aiohttp.ClientSession() as session, session.post(console.url + path, data=body, headers=JSON) as answer:
        assert 400 == answer.status
        found = await answer.json()
        assert words in found["error"] + str(found["violations"])


@pytest.mark.parametrize("query", ["limit=0", "limit=1000000", "limit=x", "limit=-1", "limit=1_0"])
async def test_numbers_of_the_query_are_checked(console: Console, query: str) -> None:
    assert 400 == await status(console, f"/api/decisions?pool=demo&{query}", headers=OWN)


async def test_each_call_has_the_key_of_its_own_user(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Also where calls of several users run at the same time; a call without a key has none."""
    keys = Keys(tmp_path_factory.mktemp("keys") / "keys.toml")
    sections = {"auth": {"keys_file": str(keys.path)}}
    folder = tmp_path_factory.mktemp("stack")
    async with (
        running_stack(folder, pools={"demo": sim_pool()}, sections=sections) as stack,
        running_console(stack) as console,
    ):
        for _ in range(5):
            assert 200 == await status(console, "/api/status", headers={**OWN, "X-Penstock-Key": keys.operator})
            assert 403 == await status(console, "/api/status", headers={**OWN, "X-Penstock-Key": keys.acme})
            assert 401 == await status(console, "/api/status", headers=OWN)
            assert 401 == await status(console, "/api/status", headers={**OWN, "X-Penstock-Key": "psk-wrong"})
            assert 401 == await status(console, "/api/status", headers={**OWN, "X-Penstock-Key": "no\u00e4"})
        body = '{"pool": "demo", "operating_point": null}'
        for key, expected in ((keys.acme, 403), (keys.operator, 403), (keys.admin, 200)):
            found = await status(
                console, "/api/operating-point", "POST", data=body, headers={**JSON, "X-Penstock-Key": key}
            )
            assert expected == found

    async with running_console(stack, keys_required=True) as console:
        assert 401 == await status(console, "/api/models", headers=OWN)
        assert 200 == await status(console, "/", headers=OWN)

    async with running_console(stack, keys_allowed=False) as console:
        assert 403 == await status(console, "/api/about", headers={**OWN, "X-Penstock-Key": keys.admin})
        assert 200 == await status(console, "/api/about", headers=OWN)
