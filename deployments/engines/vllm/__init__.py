"""The vLLM engine; the only package that imports vllm, and only inside functions or modules loaded by the engine.

Pinned to vLLM 0.32: `adapter.py` and `scheduler.py` hold everything that relies on its internals.
"""
