"""What Redis answers is told apart: its own state, which passes, and a script's bug."""

from __future__ import annotations

import pytest
from redis import exceptions

from cluster.errors import QueueUnavailableError
from cluster.redis.connections import is_demoted, translate

FAILED = "Error running script (call to f_1f9a): @user_script:7: @user_script: 7: "
FULL = "MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk."


@pytest.mark.parametrize(
    ("text", "passes"),
    [
        (f"{FULL} script: 1f9a, on @user_script:7.", True),
        (f"Error running script (call to f_1f9a): @user_script:7: @user_script: 7: -{FULL}", True),
        ("Error running script (call to f_1f9a): @user_script:7: -OOM command not allowed", True),
        ("user_script:7: attempt to index a nil value script: 1f9a, on @user_script:7.", False),
    ],
    ids=["full disk, 7.0", "full disk, 6.2", "out of memory, 6.2", "a bug"],
)
def test_a_state_of_redis_is_no_bug_of_a_script(text: str, passes: bool) -> None:
    assert passes == isinstance(translate(exceptions.ResponseError(text)), QueueUnavailableError)


PLACE = "script: 5f98062a88fd4ae8379ecd181917c6162482ba89, on @user_script:231."


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (
            exceptions.OutOfMemoryError(f"command not allowed when used memory > 'maxmemory'. {PLACE}"),
            "is out of memory",
        ),
        (exceptions.ResponseError(f"{FAILED}-OOM command not allowed"), "is out of memory"),
        (
            exceptions.ReadOnlyError(f"You can't write against a read only replica. {PLACE}"),
            "is a replica, which takes",
        ),
        (
            exceptions.ResponseError(f"MISCONF Errors writing to the AOF file: No space left {PLACE}"),
            "can't write its file",
        ),
        (exceptions.ResponseError("Protocol error: unauthenticated multibulk length"), "wants a password"),
    ],
)
def test_a_state_of_redis_is_told_in_plain_words_without_the_place_in_a_script(
    error: exceptions.ResponseError, words: str
) -> None:
    told = str(translate(error))
    assert told.startswith(f"the queue refused: Redis {words}")
    assert "script" not in told


@pytest.mark.parametrize(
    ("error", "demoted"),
    [
        (exceptions.ReadOnlyError("You can't write against a read only replica. script: 1f9a"), True),
        (exceptions.MasterDownError("Link with MASTER is down and replica-serve-stale-data is set to 'no'."), True),
        (exceptions.ClusterDownError("The cluster is down"), True),
        (exceptions.ResponseError(f"{FAILED}-READONLY You can't write against a read only replica."), True),
        (exceptions.ResponseError(f"{FAILED}-MASTERDOWN Link with MASTER is down"), True),
        (exceptions.ResponseError(f"{FAILED}-CLUSTERDOWN The cluster is down"), True),
        (exceptions.ResponseError(f"{FAILED}-OOM command not allowed"), False),
        (exceptions.ResponseError(f"{FAILED}attempt to compare nil with '-READONLY'"), False),
        (exceptions.ResponseError("user_script:7: no entry: -READONLY script: 1f9a, on @user_script:7."), False),
        (exceptions.ResponseError("unknown command 'READONLY'"), False),
    ],
)
def test_a_demoted_server_is_told_from_what_only_quotes_the_word(
    error: exceptions.ResponseError, demoted: bool
) -> None:
    assert is_demoted(error) is demoted
