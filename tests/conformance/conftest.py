"""Options that choose the server, and a cluster with simulated engines where none is chosen."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import anthropic
import openai
import pytest
import pytest_asyncio

from tests.conformance.differences import read_differences
from tests.conformance.target import ANSWER, Target


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("conformance", "server whose HTTP APIs tests/conformance tests")
    group.addoption("--base-url", default="", help="address without /v1; a simulated cluster if absent")
    group.addoption("--model", default="", help="model for conversations and texts")
    group.addoption("--tool-model", default="", help="model that calls tools; that of --model if absent")
    group.addoption("--embedding-model", default="", help="model that embeds; its tests are skipped if absent")
    group.addoption("--classifier-model", default="", help="model that classifies; as --embedding-model")
    group.addoption("--image-model", default="", help="model that takes images; as --embedding-model")
    group.addoption("--origin", default="", help="origin of a page that may call (CORS); as --embedding-model")
    group.addoption("--api-key", default="", help="key, where the server wants one")
    group.addoption("--differences", default="", help="file of known differences; those tests must fail")
    group.addoption("--complete", action="store_true", help="fail, not skip, where the server lacks an endpoint")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Expect the failures that the file of differences lists, and no others."""
    if name := config.getoption("--differences", ""):
        known = read_differences(Path(str(name)))
        for item in items:
            if found := next((each for each in known if each.is_about(item.path.name, item.name)), None):
                item.add_marker(pytest.mark.xfail(reason=found.theirs, strict=True))


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def target(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Target]:
    """The server."""

    def option(name: str) -> str:
        return str(pytestconfig.getoption(name, "") or "")

    base, model = option("--base-url"), option("--model")
    if base:
        if not model:
            raise pytest.UsageError("--base-url goes with --model")
        yield Target(
            base=base.rstrip("/").removesuffix("/v1"),
            model=model,
            tool_model=option("--tool-model") or model,
            embedding_model=option("--embedding-model"),
            classifier_model=option("--classifier-model"),
            image_model=option("--image-model"),
            origin=option("--origin").rstrip("/"),
            key=option("--api-key"),
            complete=bool(pytestconfig.getoption("--complete", False)),
        )
        return

    from tests.support.keys import Keys
    from tests.support.stack import running_stack, sim_pool

    folder = tmp_path_factory.mktemp("conformance")
    key = Keys(folder / "keys.toml").acme
    pools = {
        "demo": sim_pool(max_model_len=1024),
        "tools": sim_pool(answer=ANSWER),
        "vectors": {**sim_pool(vector_size=8, max_model_len=512), "task": "embed"},
        "classes": {**sim_pool(max_model_len=512), "task": "classify"},
    }
    origin = "https://app.example.com"
    router = {"http": {"port": 0, "cors_origins": [origin]}}
    sections = {"auth": {"keys_file": str(folder / "keys.toml")}}
    async with running_stack(folder, pools=pools, router=router, sections=sections) as stack:
        http = stack.routers[0].http
        assert http is not None
        yield Target(
            base=f"http://127.0.0.1:{http.port}",
            model="demo",
            tool_model="tools",
            embedding_model="vectors",
            classifier_model="classes",
            image_model="demo",
            origin=origin,
            key=key,
            complete=True,
            simulated=True,
        )


@pytest_asyncio.fixture(autouse=True, loop_scope="package")
async def _offered(request: pytest.FixtureRequest, target: Target) -> None:
    """Skip the tests of an endpoint that the server lacks. A module names its endpoint in `ENDPOINT`."""
    method, path = getattr(request.module, "ENDPOINT", ("", ""))
    if path and not target.complete:
        reply = await target.call(method, path, json={} if method == "POST" else None)
        if reply.status in (404, 405, 501):
            pytest.skip(f"the server has no {path}")


@pytest_asyncio.fixture(loop_scope="package")
async def sdk(target: Target) -> AsyncIterator[openai.AsyncOpenAI]:
    """OpenAI's client, which checks every answer against its types."""
    async with openai.AsyncOpenAI(
        base_url=f"{target.base}/v1", api_key=target.key or "none", max_retries=0, _strict_response_validation=True
    ) as found:
        yield found


@pytest_asyncio.fixture(loop_scope="package")
async def lax(target: Target) -> AsyncIterator[openai.AsyncOpenAI]:
    """OpenAI's client as users have it, for what its own types don't allow."""
    async with openai.AsyncOpenAI(base_url=f"{target.base}/v1", api_key=target.key or "none", max_retries=0) as found:
        yield found


@pytest_asyncio.fixture(loop_scope="package")
async def claude(target: Target) -> AsyncIterator[anthropic.AsyncAnthropic]:
    """Anthropic's client, which checks every answer against its types."""
    async with anthropic.AsyncAnthropic(
        base_url=target.base, api_key=target.key or "none", max_retries=0, _strict_response_validation=True
    ) as found:
        yield found
