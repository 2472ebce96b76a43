"""The vLLM engine. Only this package imports vllm, and only inside functions or in modules that the engine loads.

Pinned to vLLM 0.32. `adapter.py` lists the internals that it relies on, and checks them at start. The other users are
`scheduler.py`, `pump.py`, `plugin.py`, `in_core.py`, `resume_penalties.py` and `startup/early_core.py`.
"""
