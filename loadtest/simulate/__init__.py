"""A cluster on a virtual clock: the queue's rules and the production scaling policies over the simulated
engine's scheduler.
"""
