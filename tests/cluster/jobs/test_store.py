"""One suite for the job store: Redis in process, Redis 6.2, Redis 7.0 and a cluster of one node."""

from __future__ import annotations

import asyncio
import random
import threading
from typing import Any

import pytest

from cluster.errors import JobLeaseLostError, JobLimitError, JobNotFoundError, QueueUnavailableError
from cluster.jobs.blob import pack_blob
from cluster.jobs.contract import ItemResult, JobClaim, JobCursor, JobLimits, JobRecord, JobState, JobUsage
from tests.cluster.jobs.conftest import Backend
from tests.support.waiting import until

HOUR_MS = 3_600_000
USED = JobUsage(prompt_tokens=3, output_tokens=2, cached_tokens=1, gpu_seconds=0.5, cost=0.25, reasoning_tokens=1)


async def upload(store: Any, job_id: str, items: int = 3, *, tenant: str = "acme", key: str = "") -> JobRecord:
    """Store a job of items b"0", b"1", ... in blocks of two."""
    await store.create(job_id, tenant, b"header")
    for at in range(0, items, 2):
        await store.append(job_id, at, [b"%d" % n for n in range(at, min(at + 2, items))])
    record: JobRecord = await store.seal(job_id, key, f"digest-{items}", HOUR_MS)
    return record


async def claimed(store: Any, holder: str = "A", *, takeover: bool = False) -> JobClaim:
    """Claim a job that must be there."""
    claim = await store.claim(holder, takeover=takeover)
    assert claim is not None
    return claim


async def test_a_job_is_there_when_it_is_sealed_and_not_before(backend: Backend) -> None:
    store = backend.store()
    await store.create("j", "acme", b"header")
    await store.append("j", 0, [b"0", b"1"])
    assert await store.claim("A", takeover=True) is None
    assert [] == await store.list_jobs("acme", None, 10)

    record = await store.seal("j", "key", "digest", HOUR_MS)

    assert (JobState.QUEUED, b"header", "key", "digest") == (record.state, record.header, record.key, record.digest)
    assert (2, 1, 0) == (record.items, record.blocks, record.results)
    assert backend.clock.wall_ms() == record.created_ms == record.due_ms - HOUR_MS
    assert record == await store.get("j") == await store.find("acme", "key")
    assert await store.find("other", "key") is None
    assert [record] == await store.list_jobs("acme", None, 10)


async def test_blocks_come_back_as_they_were(backend: Backend) -> None:
    store = backend.store()
    bodies = [b"x" * 10_000, b"", bytes(range(256)) * 3]
    await store.create("j", "acme", b"")
    await store.append("j", 0, bodies)
    await store.append("j", 3, [b"last"])
    await store.seal("j", "", "", HOUR_MS)

    backlog = await store.backlog("j")
    assert (3, 1) == tuple(backlog.sizes)
    assert bodies == await store.block("j", 0)
    assert [b"last"] == await store.block("j", 1)
    assert [] == await store.block("j", 2)


async def test_an_upload_takes_blocks_in_order_only(backend: Backend) -> None:
    store = backend.store()
    await store.create("j", "acme", b"")
    await store.append("j", 0, [b"0"])
    for at in (0, 2):
        with pytest.raises(JobNotFoundError):
            await store.append("j", at, [b"x"])
    with pytest.raises(JobNotFoundError):
        await store.append("nope", 0, [b"x"])
    await store.seal("j", "", "", HOUR_MS)
    with pytest.raises(JobNotFoundError):
        await store.append("j", 1, [b"late"])
    with pytest.raises(JobNotFoundError):
        await store.seal("j", "", "", HOUR_MS)


async def test_a_key_names_the_first_job_sealed_until_it_is_deleted(backend: Backend) -> None:
    store = backend.store()
    first = await upload(store, "j1", key="mine")
    second = await upload(store, "j2", key="mine")
    other = await upload(store, "j3", key="mine", tenant="other")
    assert ("j1", "j1", "j3") == (first.job_id, second.job_id, other.job_id)
    assert JobState.UPLOADING == (await store.get("j2")).state

    await store.delete("j1")
    assert "j2" == (await store.seal("j2", "mine", "", HOUR_MS)).job_id


async def test_jobs_are_claimed_in_order_and_by_one_feeder_each(backend: Backend) -> None:
    one, two = backend.store(), backend.store()
    for job_id in ("z", "a", "m"):
        await upload(one, job_id)
        backend.clock.advance(1)
    claims = [await claimed(store, name) for store, name in ((one, "A"), (two, "B"), (one, "A"))]

    assert ["z", "a", "m"] == [claim.record.job_id for claim in claims]
    assert 3 == len({claim.token for claim in claims})
    assert await one.claim("A", takeover=True) is None
    record = await two.get("a")
    assert (JobState.RUNNING, "B") == (record.state, record.holder)
    assert backend.clock.wall_ms() == record.started_ms


async def test_many_claims_at_once_give_each_job_once(backend: Backend) -> None:
    limits = JobLimits(tenant_feeding=100)
    stores = [backend.store(limits) for _ in range(4)]
    for number in range(20):
        await upload(stores[0], f"j{number}", 1)
    claims = await asyncio.gather(*(s.claim(f"{i}", takeover=True) for i, s in enumerate(stores)))
    found = [claim for claim in claims if claim is not None]
    while (claim := await stores[0].claim("0", takeover=True)) is not None:
        found.append(claim)
    assert sorted(f"j{number}" for number in range(20)) == sorted(claim.record.job_id for claim in found)


async def test_the_last_result_ends_the_job_and_drops_the_bodies(backend: Backend) -> None:
    store = backend.store(JobLimits(ttl_ms=5_000))
    await upload(store, "j", 3)
    claim = await claimed(store)
    assert await store.store(claim, 2, ItemResult(b"two", usage=USED))
    assert await store.store(claim, 0, ItemResult(b"zero" * 100, failed=True))
    record = await store.get("j")
    assert (JobState.RUNNING, 2, 1, USED) == (record.state, record.results, record.failed, record.usage)
    assert b"\xa0" == (await store.backlog("j")).done

    backend.clock.advance(1)
    assert await store.store(claim, 1, ItemResult(b"one", usage=USED))

    record = await store.get("j")
    assert (JobState.SUCCEEDED, 3, 1, USED + USED) == (record.state, record.results, record.failed, record.usage)
    assert (backend.clock.wall_ms(), backend.clock.wall_ms() + 5_000) == (record.ended_ms, record.due_ms)
    assert [b"two", b"zero" * 100, b"one"] == await store.results("j", 0, 10)
    assert [b"zero" * 100] == await store.results("j", 1, 1)
    assert [] == await store.results("j", 3, 10)
    assert ([], 0) == (await store.block("j", 0), len((await store.backlog("j")).sizes))
    with pytest.raises(JobLeaseLostError):
        await store.renew(claim)


async def test_streams_are_served_while_a_large_result_is_packed(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    if backend.server is None:
        pytest.skip("Redis in process serves nobody else")
    store = backend.store()
    await upload(store, "j", 1)
    claim = await claimed(store)
    began, served = threading.Event(), threading.Event()

    def pack(body: bytes) -> bytes:
        began.set()
        assert served.wait(60), "nobody was served"
        return pack_blob(body)

    monkeypatch.setattr("cluster.jobs.redis.store.pack_blob", pack)
    storing = asyncio.create_task(store.store(claim, 0, ItemResult(b"x" * 100_000)))
    await until(began.is_set)
    served.set()

    assert await storing
    assert [b"x" * 100_000] == await store.results("j", 0, 1)


async def test_the_first_result_of_an_item_wins(backend: Backend) -> None:
    store = backend.store()
    await upload(store, "j", 2)
    claim = await claimed(store)
    assert await store.store(claim, 1, ItemResult(b"first"))
    assert not await store.store(claim, 1, ItemResult(b"second", failed=True))
    assert [b"first"] == await store.results("j", 0, 10)
    assert 0 == (await store.get("j")).failed


async def test_a_lease_that_is_renewed_is_kept(backend: Backend) -> None:
    store = backend.store(JobLimits(lease_ms=1_000))
    await upload(store, "j")
    claim = await claimed(store)
    for _ in range(5):
        backend.clock.advance(0.9)
        assert "A" == (await store.renew(claim)).holder
        assert await store.claim("B", takeover=True) is None


async def test_a_feeder_that_lost_its_lease_can_do_nothing(backend: Backend) -> None:
    store = backend.store(JobLimits(lease_ms=1_000))
    await upload(store, "j", 2)
    old = await claimed(store)
    assert await store.store(old, 0, ItemResult(b"zero"))
    backend.clock.advance(1.5)
    # A lease that ran out still counts while nobody wants the job, and is taken over only by who asks for that.
    await store.renew(old)
    backend.clock.advance(1.5)
    assert await store.claim("B", takeover=False) is None
    new = await claimed(store, "B", takeover=True)

    for attempt in (
        store.store(old, 1, ItemResult(b"late")),
        store.renew(old),
        store.count_failure(old, 1, "a"),
    ):
        with pytest.raises(JobLeaseLostError):
            await attempt
    await store.release(old)
    assert "B" == (await store.renew(new)).holder
    assert b"\x80" == (await store.backlog("j")).done
    assert await store.store(new, 1, ItemResult(b"one"))
    assert [b"zero", b"one"] == await store.results("j", 0, 10)


async def test_when_the_clock_is_set_back_jobs_are_claimed_as_before(backend: Backend) -> None:
    store = backend.store(JobLimits(lease_ms=1_000))
    for name in ("fed", "lost", "queued"):
        await upload(store, name)
    claim = await claimed(store)
    assert "lost" == (await claimed(store, "dead")).record.job_id
    backend.clock.jump_wall(-3600)
    found = []
    for _ in range(12):
        # Who is alive renews three times per lease.
        await store.renew(claim)
        found.append(taken.record.job_id if (taken := await store.claim("B", takeover=True)) else "")
        if found[-1]:
            await store.cancel(found[-1])
        backend.clock.advance(0.3)
    assert ["queued", *[""] * 3, "lost"] == found[:5]
    assert not any(found[5:])


async def test_when_the_clock_is_set_forward_nobody_alive_loses_a_job(backend: Backend) -> None:
    store = backend.store(JobLimits(lease_ms=1_000))
    await upload(store, "fed")
    await upload(store, "lost")
    claim = await claimed(store)
    await claimed(store, "dead")
    backend.clock.jump_wall(60)
    found = []
    for _ in range(6):
        found.append(await store.claim("B", takeover=True))
        await store.renew(claim)
        backend.clock.advance(0.3)
    assert [None] * 4 == found[:4]
    assert "lost" == found[4].record.job_id
    assert found[5] is None


async def test_a_released_job_is_free_at_once(backend: Backend) -> None:
    store = backend.store()
    await upload(store, "j")
    claim = await claimed(store)
    await store.release(claim)
    record = await store.get("j")
    assert (JobState.RUNNING, "") == (record.state, record.holder)
    assert "B" == (await claimed(store, "B")).record.holder


async def test_failures_count_over_all_feeders_until_there_is_a_result(backend: Backend) -> None:
    store = backend.store()
    await upload(store, "j", 2)
    claim = await claimed(store)
    assert [1, 2] == [await store.count_failure(claim, 1, name) for name in ("a", "b")]
    await store.release(claim)
    claim = await claimed(store, "B")
    assert [3, 1] == [await store.count_failure(claim, item, "c") for item in (1, 0)]


async def test_a_failure_that_is_told_again_counts_once(backend: Backend) -> None:
    """Its feeder tells it until it hears an answer, and the first one may be lost."""
    store = backend.store()
    await upload(store, "j", 2)
    claim = await claimed(store)
    assert [1, 1, 2, 2] == [await store.count_failure(claim, 1, name) for name in ("a", "a", "b", "b")]
    await store.store(claim, 1, ItemResult(b""))
    assert not [key for key in sorted(backend.keys()) if key.endswith(":failures")]


async def test_a_tenant_with_many_jobs_does_not_hide_anothers(backend: Backend) -> None:
    store = backend.store(JobLimits(tenant_feeding=2))
    for number in range(70):
        await upload(store, f"many{number}", 1)
    backend.clock.advance(0.1)
    await upload(store, "one", 1, tenant="other")
    held = []
    for _ in range(4):
        while (claim := await store.claim("A", takeover=True)) is not None:
            held.append(claim)
        backend.clock.advance(0.5)

    assert {"acme": 2, "other": 1} == {
        tenant: sum(claim.record.tenant == tenant for claim in held) for tenant in ("acme", "other")
    }
    first = next(claim for claim in held if claim.record.tenant == "acme")
    await store.store(first, 0, ItemResult(b""))
    backend.clock.advance(1.1)
    assert "acme" == (await claimed(store)).record.tenant
    assert await store.claim("A", takeover=True) is None


async def test_one_look_goes_past_hundreds_of_jobs_of_a_tenant_that_is_fed_enough(backend: Backend) -> None:
    """Each later look would cost the others a second."""
    store = backend.store(JobLimits(tenant_feeding=2))
    for number in range(300):
        await upload(store, f"many{number}", 1)
    backend.clock.advance(0.1)
    await upload(store, "one", 1, tenant="other")

    tenants = []
    while (claim := await store.claim("A", takeover=True)) is not None:
        tenants.append(claim.record.tenant)

    assert ["acme", "acme", "other"] == tenants


@pytest.mark.parametrize("fed", [False, True])
async def test_a_cancelled_job_keeps_its_results_and_loses_its_feeder(backend: Backend, fed: bool) -> None:
    store = backend.store()
    await upload(store, "j", 2)
    claim = await claimed(store)
    await store.store(claim, 1, ItemResult(b"one"))
    if not fed:
        await store.release(claim)
    await store.cancel("j")

    record = await store.get("j")
    assert (JobState.CANCELLED, 1, "") == (record.state, record.results, record.holder)
    assert [b"one"] == await store.results("j", 0, 10)
    assert await store.claim("B", takeover=True) is None
    with pytest.raises(JobLeaseLostError):
        await store.store(claim, 0, ItemResult(b"late"))
    await store.cancel("j")
    await store.cancel("nope")
    assert record == await store.get("j")


async def test_what_is_due_expires_and_is_deleted(backend: Backend) -> None:
    store = backend.store(JobLimits(upload_ms=2_000, ttl_ms=10 * HOUR_MS))
    await store.create("upload", "acme", b"")
    await store.append("upload", 0, [b"x"])
    await upload(store, "open")
    assert 0 == await store.sweep()
    backend.clock.advance(2)
    assert 1 == await store.sweep()
    assert await store.get("upload") is None

    backend.clock.advance(3_600)
    assert 1 == await store.sweep()
    assert JobState.EXPIRED == (await store.get("open")).state
    assert await store.claim("A", takeover=True) is None
    backend.clock.advance(10 * 3_600 - 1)
    assert 0 == await store.sweep()
    backend.clock.advance(1)
    assert 1 == await store.sweep()
    assert await store.get("open") is None
    assert set() == backend.keys()


async def test_deleting_leaves_nothing_behind_in_any_state(backend: Backend) -> None:
    store = backend.store()
    await store.create("uploading", "acme", b"")
    await store.append("uploading", 0, [b"x"])
    await upload(store, "queued", key="k")
    await upload(store, "running", tenant="a")
    await claimed(store)
    await claimed(store)
    await upload(store, "cancelled", tenant="b")
    await store.cancel("cancelled")
    await upload(store, "done", 1, tenant="c")
    claim = await claimed(store)
    await store.count_failure(claim, 0, "a")
    await store.store(claim, 0, ItemResult(b"x" * 500))
    for job_id in ("uploading", "queued", "running", "cancelled", "done", "nope"):
        await store.delete(job_id)
    assert set() == backend.keys()


@pytest.mark.parametrize(
    ("limits", "what"),
    [
        (JobLimits(tenant_jobs=2), "tenant_jobs"),
        (JobLimits(max_jobs=2), "max_jobs"),
        (JobLimits(tenant_items=8), "tenant_items"),
        (JobLimits(max_items=8), "max_items"),
        (JobLimits(tenant_bytes=30), "tenant_bytes"),
        (JobLimits(max_bytes=30), "max_bytes"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_bounds_hold_and_deletion_gives_back(backend: Backend, limits: JobLimits, what: str) -> None:
    store = backend.store(limits)
    await upload(store, "j1")
    await upload(store, "j2")
    with pytest.raises(JobLimitError) as caught:
        await upload(store, "j3")
    assert (what, getattr(limits, what)) == (caught.value.what, caught.value.limit)
    await store.delete("j3")

    if what.startswith("tenant"):
        await upload(store, "j4", tenant="other")
    await store.delete("j1")
    await upload(store, "j5")


@pytest.mark.parametrize("what", ["tenant_bytes", "max_bytes"])
async def test_results_count_against_the_bound_on_bytes_too(backend: Backend, what: str) -> None:
    store = backend.store(JobLimits(**{what: 400}))
    await upload(store, "j1")
    claim = await claimed(store)
    large = random.Random(1).randbytes(300)
    assert await store.store(claim, 0, ItemResult(large))
    with pytest.raises(JobLimitError) as caught:
        await store.store(claim, 1, ItemResult(large))
    assert (what, 400) == (caught.value.what, caught.value.limit)

    # The item has no result yet, and what says why fits always.
    assert await store.store(claim, 1, ItemResult(large, failed=True))
    assert not await store.store(claim, 1, ItemResult(large))
    assert await store.store(claim, 2, ItemResult(b"small", failed=True))
    record = await store.get("j1")
    assert record is not None
    assert (JobState.SUCCEEDED, 3, 2) == (record.state, record.results, record.failed)


async def test_lists_are_newest_first_and_paged(backend: Backend) -> None:
    store = backend.store()
    for number in range(5):
        await upload(store, f"j{number}")
        backend.clock.advance(1)
    await upload(store, "x", tenant="acme2")
    first = await store.list_jobs("acme", None, 3)
    rest = await store.list_jobs("acme", JobCursor(first[-1].created_ms, first[-1].job_id), 3)
    assert [["j4", "j3", "j2"], ["j1", "j0"]] == [[record.job_id for record in page] for page in (first, rest)]
    assert ["x"] == [record.job_id for record in await store.list_jobs("acme2", None, 3)]


async def test_a_page_is_full_although_a_job_was_deleted_while_it_was_read(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shorter one would be the last."""
    store, other = backend.store(), backend.store()
    for number in range(5):
        await upload(store, f"j{number}")
        backend.clock.advance(1)
    get = store.get

    async def too_late(job_id: str) -> JobRecord | None:
        await other.delete("j3")
        return await get(job_id)

    monkeypatch.setattr(store, "get", too_late)
    assert ["j4", "j2", "j1"] == [record.job_id for record in await store.list_jobs("acme", None, 3)]
    assert ["j4", "j2", "j1", "j0"] == [record.job_id for record in await store.list_jobs("acme", None, 4)]


async def test_names_that_cannot_be_stored_are_refused(backend: Backend) -> None:
    store = backend.store()
    for job_id, tenant in (("a{b", "t"), ("", "t"), ("a:b", "t"), ("j", ""), ("j", "a\0b")):
        with pytest.raises(ValueError, match="must"):
            await store.create(job_id, tenant, b"")


async def test_a_full_redis_lets_go_of_jobs(backend: Backend) -> None:
    """What needs memory is refused; leases go on, and jobs go."""
    if backend.server is None:
        pytest.skip("Redis in process is never full")
    store = backend.store()
    for name in ("canceled", "deleted", "open"):
        await upload(store, name)
    claims = [await claimed(store), await claimed(store), await claimed(store)]
    with backend.server.full():
        with pytest.raises(QueueUnavailableError):
            await upload(store, "more")
        for claim in claims:
            await store.renew(claim)
        await store.cancel("canceled")
        await store.delete("deleted")
        await store.release(claims[2])
        backend.clock.advance(HOUR_MS / 1000)
        await store.sweep()
        backend.clock.advance(1000 * HOUR_MS / 1000)
        await store.sweep()
    assert backend.keys() == set()
