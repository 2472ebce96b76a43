"""Where requests prefer to run: known beginnings, sessions, first guesses, and when none of it counts."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from cluster.models import Windows
from cluster.queue.heartbeats import ReplicaRecord
from cluster.settings import AffinitySettings
from penstock.models import ReplicaState
from router.affinity import Affinity

WINDOWS = Windows(sequences=64, kv_tokens=400_000, prefill_tokens=32_768)
NAMES = tuple(f"r{number}" for number in range(8))


def registry(*names: str, sequences: dict[str, int] | None = None, **changes: ReplicaState) -> dict[str, ReplicaRecord]:
    """Build a registry; `sequences` says who is loaded, other keywords say whose state is not READY."""
    return {
        name: ReplicaRecord(
            name, b"", changes.get(name, ReplicaState.READY), WINDOWS, (sequences or {}).get(name, 0), 0, 0, 0
        )
        for name in names or NAMES
    }


def policy(**settings: object) -> Affinity:
    return Affinity(AffinitySettings.model_validate(settings))


def prompt(seed: int, tokens: int = 2_000) -> list[int]:
    return random.Random(seed).choices(range(50_000), k=tokens)


def ran(affinity: Affinity, ids: list[int], replica: str, *, scope: bytes = b"", session: str = "") -> None:
    affinity.granted(affinity.look(ids, scope, session, registry())[0], (), replica, 0)


def wished(
    affinity: Affinity, ids: list[int], records: dict[str, ReplicaRecord], *, scope: bytes = b"", session: str = ""
) -> tuple[str, ...]:
    return affinity.look(ids, scope, session, records)[1]


def home(ids: list[int], *, session: str = "") -> str:
    """Say where a request goes of which nothing is known."""
    [name] = wished(policy(), ids, registry(), session=session)
    return name


def away(ids: list[int], *, session: str = "") -> list[str]:
    """List the replicas that are not a request's home."""
    return [name for name in NAMES if name != home(ids, session=session)]


def test_routers_that_share_nothing_guess_alike():
    one, other, records = policy(), policy(), registry()
    for seed in range(50):
        assert wished(one, prompt(seed), records) == wished(other, prompt(seed), records)
        session = f"s{seed}"
        assert wished(one, [1], records, session=session) == wished(other, [2], records, session=session)


def test_first_guesses_spread_evenly():
    affinity, records = policy(), registry()
    guesses = Counter(wished(affinity, prompt(seed, 64), records)[0] for seed in range(800))

    assert set(NAMES) == set(guesses)
    assert max(guesses.values()) <= 150
    assert min(guesses.values()) >= 60


@pytest.mark.slow
def test_a_replica_that_goes_or_comes_moves_only_its_own():
    affinity = policy()
    before = {seed: wished(affinity, prompt(seed), registry())[0] for seed in range(200)}
    fewer = {seed: wished(affinity, prompt(seed), registry(*NAMES[:-1]))[0] for seed in range(200)}
    more = {seed: wished(affinity, prompt(seed), registry(*NAMES, "r8"))[0] for seed in range(200)}

    assert {seed for seed in before if before[seed] != fewer[seed]} == {s for s, name in before.items() if name == "r7"}
    assert {more[seed] for seed in before if before[seed] != more[seed]} == {"r8"}


def test_a_longer_prompt_follows_its_beginning_and_still_wishes_for_its_home():
    """The home is what other routers wish for; if it dropped out, each router would gather its own copy."""
    affinity, records = policy(), registry()
    elsewhere = away(prompt(1))[0]
    ran(affinity, prompt(1), elsewhere)

    assert wished(affinity, prompt(1) + prompt(2), records) == (home(prompt(1)), elsewhere)


def test_what_its_home_knows_needs_no_second_place():
    affinity, records = policy(), registry()
    ran(affinity, prompt(1), away(prompt(1))[0])
    ran(affinity, prompt(1), home(prompt(1)))

    assert wished(affinity, prompt(1), records) == (home(prompt(1)),)


def test_the_deepest_beginning_comes_first():
    affinity, records = policy(max_preferred=3), registry()
    whole = prompt(1, 4_000)
    first, second, third = away(whole)[:3]
    ran(affinity, whole[:1_000], first)
    ran(affinity, whole[:3_000], second)
    ran(affinity, whole[:3_500], third)

    assert wished(affinity, whole, records) == (home(whole), third, second)


def test_a_replica_that_knows_much_less_is_no_second_choice():
    """It would compute most of the prompt again, and the one that knows it would not get the next turn."""
    affinity, records = policy(max_preferred=8), registry()
    whole = prompt(1, 4_000)
    less, more = away(whole)[:2]
    ran(affinity, whole[:1_500], less)
    ran(affinity, whole[:3_500], more)

    assert wished(affinity, whole, records) == (home(whole), more)


def test_a_beginning_that_is_a_small_part_tells_nothing():
    """All prompts of an application begin with its system prompt; if that counted, one replica would get them all."""
    affinity, records = policy(), registry()
    system = prompt(0, 200)
    ran(affinity, system + prompt(1, 4_000), "r3")
    places = {wished(affinity, system + prompt(seed, 4_000), records)[0] for seed in range(2, 40)}

    assert len(places) >= 6


def test_a_session_returns_to_its_replica_whatever_it_asks():
    affinity, records = policy(max_preferred=3), registry()
    own, other = away([], session="s")[:2]
    ran(affinity, prompt(1), own, session="s")
    ran(affinity, prompt(2), other)

    assert wished(affinity, prompt(2), records, session="s") == (home([], session="s"), own, other)
    assert own not in wished(affinity, prompt(2), records, session="another")[1:]


def test_scopes_know_nothing_of_each_other():
    """Tenant salt and adapter keep caches apart, so a hit in another scope would be none."""
    affinity, records = policy(), registry()
    guess = wished(affinity, prompt(1), records, scope=b"b")
    ran(affinity, prompt(1), next(name for name in NAMES if name not in guess), scope=b"a")

    assert wished(affinity, prompt(1), records, scope=b"b") == guess


def test_a_hot_beginning_spills_to_a_second_replica_that_then_knows_it_too():
    affinity = policy()
    first = home(prompt(1))
    hot = registry(sequences={first: 40})
    [spilled] = wished(affinity, prompt(1), hot)
    assert spilled != first
    ran(affinity, prompt(1), spilled)

    assert wished(affinity, prompt(1), hot) == (spilled,)
    assert wished(affinity, prompt(1), registry()) == (first, spilled)


def test_own_grants_count_before_the_registry_shows_them():
    """A burst between two heartbeats must not all go to one replica."""
    affinity, records = policy(), registry()
    places = Counter()
    for _ in range(64):
        trail, preferred = affinity.look(prompt(1), b"", "", records)
        affinity.granted(trail, preferred, preferred[0], 2_000)
        places[preferred[0]] += 1

    assert max(places.values()) <= 18
    assert len(places) >= 4


def test_equally_full_replicas_are_all_preferable():
    """With a standing queue every replica is full; affinity then decides who takes whom."""
    affinity = policy()
    elsewhere = away(prompt(1))[0]
    ran(affinity, prompt(1), elsewhere)

    assert elsewhere in wished(affinity, prompt(1), registry(sequences=dict.fromkeys(NAMES, 64)))


def test_a_lost_replica_is_not_preferred_and_one_that_only_missed_a_beat_is_not_forgotten():
    affinity = policy()
    ran(affinity, prompt(1), "r2", session="s")
    assert "r2" in wished(affinity, prompt(1), registry(), session="s")
    without = [name for name in NAMES if name != "r2"]
    assert "r2" not in wished(affinity, prompt(1), registry(*without), session="s")

    assert "r2" in wished(affinity, prompt(1), registry(), session="s")


def test_a_draining_replica_is_not_preferred():
    affinity = policy()
    ran(affinity, prompt(1), "r2")

    assert "r2" not in wished(affinity, prompt(1), registry(r2=ReplicaState.DRAINING))


@pytest.mark.parametrize(
    ("settings", "ids", "names"),
    [
        pytest.param({"prefix": False, "session": False}, prompt(1), NAMES, id="switched off"),
        pytest.param({}, prompt(1), ("r0",), id="one replica"),
        pytest.param({}, prompt(1, 63), NAMES, id="no full block and no session"),
        pytest.param({}, prompt(1), (), id="no replica"),
    ],
)
def test_without_a_reason_there_is_no_preference(settings: dict[str, bool], ids: list[int], names: tuple[str, ...]):
    records = registry(*names) if names else {}
    assert wished(policy(**settings), ids, records) == ()


def test_memory_is_bounded_and_what_is_used_stays():
    affinity, records = policy(index_blocks=1_024), registry()
    used = prompt(1)
    elsewhere = away(used)[0]
    for seed in range(2, 200):
        ran(affinity, used, elsewhere)
        ran(affinity, prompt(seed), "r1")
        assert affinity.known_blocks <= 1_024

    assert elsewhere in wished(affinity, used, records)


def test_grants_are_counted_by_what_became_of_the_wish():
    affinity = policy()
    trail, _ = affinity.look(prompt(1), b"", "", registry())
    affinity.granted(trail, ("r1",), "r1", 0)
    affinity.granted(trail, ("r1", "r2"), "r3", 0)
    affinity.granted(trail, (), "r3", 0)

    assert (affinity.hits, affinity.misses, affinity.indifferent) == (1, 1, 1)


def test_each_of_many_adapters_goes_to_few_replicas():
    affinity, records, homes = policy(), registry(), Counter()
    for number in range(64):
        adapter = f"a{number}"
        wishes = {affinity.look(prompt(seed), b"", "", records, adapter)[1] for seed in range(10)}
        # Routers agree, whatever the prompt and the tenant are.
        assert wishes == {policy().look([1], b"tenant", "s", records, adapter)[1]}
        homes.update(wish for (wish,) in wishes)
    assert set(NAMES) == set(homes)
    # A home that is too full gives way, and a prompt that ran elsewhere goes on there.
    trail, (name,) = affinity.look(prompt(1), b"", "", records, "a1")
    full = registry(sequences={name: 64})
    assert affinity.look(prompt(1), b"", "", full, "a1")[1] not in ((name,), ())
    other = next(each for each in NAMES if each != name)
    affinity.granted(trail, (), other, 0)
    assert (other,) == affinity.look(prompt(1), b"", "", registry(), "a1")[1]
