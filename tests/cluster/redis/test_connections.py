"""What Redis answers is told apart: its own state, which passes, and a script's bug."""

from __future__ import annotations

import pytest
from redis import exceptions

from cluster.errors import QueueUnavailableError
from cluster.redis.connections import is_demoted, translate

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


FAILED = "Error running script (call to f_1f9a): @user_script:7: @user_script: 7: "


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
