"""Pure control policies: a snapshot goes in, a decision with its reasons comes out. No I/O and no clock.

The batch policy chooses a replica's batch limit and runs in the replica. The replica policy chooses how many replicas a
group has and runs in the autoscaler. The simulator runs both. In control terms they are a fast and a slow loop, which
is where names such as `FastRules` and `SlowRules` come from.
"""
