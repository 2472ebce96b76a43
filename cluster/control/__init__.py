"""Pure control policies: what was seen goes in, a decision with its reasons comes out. No I/O and no clock.

The replica hosts the fast loop (batch limit), the autoscaler the slow one (replicas), and the simulator both.
"""
