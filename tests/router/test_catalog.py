"""What a router keeps of the models of its pools."""

from __future__ import annotations

import gc
import threading
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cluster.digests import TOKENIZER_FILES, tokenizer_digest
from cluster.errors import LinkLostError, NoReplicaError
from cluster.models import ModelInfo
from cluster.settings import LimitSettings
from penstock.models import Capabilities
from router.catalog import Catalog
from router.tokens import Tokenizer
from router.tokens.cache import write_files
from tests.support.stack import running_stack
from tests.support.tiny_model import make_tokenizer
from tests.support.waiting import until


def test_processes_that_store_the_same_model_do_not_disturb_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    announced = SimpleNamespace(model=ModelInfo("digest", "0" * 64, 64, 300, Capabilities()))
    seen: Any = SimpleNamespace(
        name="demo",
        settings=SimpleNamespace(model="demo"),
        replicas=SimpleNamespace(any_announcement=lambda: announced),
    )
    first, second = (Catalog({"demo": seen}, tmp_path, LimitSettings()) for _ in range(2))
    replace, others = Path.replace, [second]

    def later(self: Path, target: Path) -> Path:
        while others:
            others.pop().known(seen)
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", later)
    first.known(seen)

    assert [] == caplog.messages
    assert ["demo.json"] == [path.name for path in (tmp_path / "models").iterdir()]


async def test_the_tokenizers_of_earlier_models_do_not_stay_in_memory(tmp_path: Path) -> None:
    make_tokenizer(tmp_path)
    files = {name: (tmp_path / name).read_bytes() for name in TOKENIZER_FILES if (tmp_path / name).is_file()}
    announced = SimpleNamespace(model=None)
    pool: Any = SimpleNamespace(
        name="demo",
        settings=SimpleNamespace(model="demo"),
        replicas=SimpleNamespace(any_announcement=lambda: announced),
    )
    catalog = Catalog({"demo": pool}, tmp_path, LimitSettings())
    used: list[weakref.ref[Tokenizer]] = []
    try:
        for number in range(12):
            variant = files | {"chat_template.jinja": f"{number}".encode()}
            digest = tokenizer_digest(variant)
            write_files(tmp_path / "tokenizers", digest, variant)
            announced.model = ModelInfo(f"{number}", digest, 64, 300, Capabilities())
            used.append(weakref.ref((await catalog.model(pool))[1]))
        gc.collect()
        assert used[0]() is None
        assert used[-1]() is not None
    finally:
        await catalog.close()


async def test_a_router_that_stops_ends_the_threads_that_encode(tmp_path: Path) -> None:
    before = set(threading.enumerate())

    def encoding() -> list[threading.Thread]:
        return [each for each in set(threading.enumerate()) - before if each.name.startswith("tokens")]

    async with running_stack(tmp_path) as stack:
        await until(lambda: bool(encoding()))
        await stack.routers[0].stop(drain_s=0.0)
        await until(lambda: not encoding())


async def test_a_fault_while_a_tokenizer_is_fetched_does_not_end_the_tries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the first request it would come with a thousand others."""
    model, learned = Catalog.model, list[str]()
    faults = [KeyError("a fault of ours")]

    async def once_broken(self: Catalog, *args: Any) -> Any:
        if faults:
            raise faults.pop()
        found = await model(self, *args)
        learned.append(found[0].tokenizer_digest)
        return found

    monkeypatch.setattr(Catalog, "model", once_broken)
    async with running_stack(tmp_path) as stack:
        await until(lambda: bool(learned))
        assert learned[0] == stack.routers[0].pools["demo"].replicas.any_announcement().model.tokenizer_digest  # type: ignore[union-attr]


async def test_a_replica_that_goes_while_it_is_asked_leaves_the_tokenizer_to_another_one(tmp_path: Path) -> None:
    make_tokenizer(tmp_path)
    files = {name: (tmp_path / name).read_bytes() for name in TOKENIZER_FILES if (tmp_path / name).is_file()}
    one = SimpleNamespace(model=ModelInfo("digest", tokenizer_digest(files), 64, 300, Capabilities()))

    async def gone(_digest: str) -> Any:
        raise LinkLostError("the replica closed the link")

    async def there(_digest: str) -> Any:
        return files

    links = {"demo-r0": SimpleNamespace(fetch_tokenizer=gone), "demo-r1": SimpleNamespace(fetch_tokenizer=there)}
    replicas = SimpleNamespace(any_announcement=lambda: one, reading=lambda _digest: list(links), link=links.get)
    pool: Any = SimpleNamespace(name="demo", settings=SimpleNamespace(model="demo"), replicas=replicas)
    catalog = Catalog({"demo": pool}, tmp_path, LimitSettings())
    try:
        assert "digest" == (await catalog.model(pool))[0].digest
    finally:
        await catalog.close()


@pytest.mark.parametrize(
    ("announced", "said"),
    [
        (2, "'demo': this router reaches none of the pool's replicas (2) now, and needs one for its tokenizer "),
        (0, "no replica of 'demo' runs now, and its tokenizer was never read"),
    ],
)
async def test_a_pool_whose_tokenizer_nobody_can_be_asked_for_says_why(
    tmp_path: Path, announced: int, said: str
) -> None:
    one = SimpleNamespace(model=ModelInfo("digest", "0" * 64, 64, 300, Capabilities()))
    replicas = SimpleNamespace(
        any_announcement=lambda: one,
        announcements={f"demo-r{number}": one for number in range(announced)},
        reading=lambda _digest: [],
    )
    pool: Any = SimpleNamespace(name="demo", settings=SimpleNamespace(model="demo"), replicas=replicas)
    catalog = Catalog({"demo": pool}, tmp_path, LimitSettings())
    try:
        with pytest.raises(NoReplicaError) as refused:
            await catalog.model(pool)
    finally:
        await catalog.close()
    assert str(refused.value).startswith(said)
