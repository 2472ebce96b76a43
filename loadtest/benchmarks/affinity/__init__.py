"""The benefit of affinity: the queue's rules and the production policy on a virtual clock, over simulated engines."""
