"""The queue in memory, for tests and simulations: the rules of the Lua scripts a second time. One test suite runs on
both, and one test compares their answers.
"""
