"""The vLLM engine. Only this package imports vllm, and only inside functions or in modules that the engine loads.

Pinned to vLLM 0.32. Everything that relies on its internals is in `adapter.py` and `scheduler.py`.
"""
