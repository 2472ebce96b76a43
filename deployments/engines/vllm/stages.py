"""Stages of vLLM's start, and its first error, read off what its processes log."""

from __future__ import annotations

import logging
import os

from cluster.ray_serve.start_report import VARIABLE, StartReport

_STAGES = (
    ("Initializing a V1 LLM engine", "starting the engine"),
    ("Starting to load model", "loading the weights"),
    ("Loading drafter model", "loading the draft model"),
    ("Using cache directory", "compiling"),
    ("Compiling a graph", "compiling"),
    ("Compile and warming up", "compiling and warming up"),
    ("Warming up model", "compiling and warming up"),
    ("Available KV cache memory", "warming up"),
    ("Profiling CUDA graph memory", "capturing CUDA graphs"),
    ("Capturing CUDA graph", "capturing CUDA graphs"),
)
"""Beginnings of vLLM's log lines, and what it does from then on."""
_LOGGERS = ("vllm", "huggingface_hub")
_RETRIES = "thrown while requesting"
"""Text of huggingface_hub before it tries again."""
_FAILED = "failed to start"
"""Text of an engine process that logs the exception that ends it."""


class _Handler(logging.Handler):
    def __init__(self, report: StartReport) -> None:
        super().__init__(logging.INFO)
        self._report = report

    def emit(self, record: logging.LogRecord) -> None:
        """Note a stage or an error; any other line changes nothing."""
        text = record.getMessage()
        if record.exc_info and record.exc_info[1] is not None and _FAILED in text:
            error = record.exc_info[1]
            self._report.cause(f"{type(error).__name__}: {error}")
        elif _RETRIES in text:
            self._report.stage(f"waiting for the model hub: {text}")
        else:
            for begin, stage in _STAGES:
                if text.startswith(begin):
                    self._report.stage(stage)


def listen() -> None:
    """Report the stages of this process, if a report was inherited. Later calls change nothing."""
    if not os.environ.get(VARIABLE):
        return
    for name in _LOGGERS:
        logger = logging.getLogger(name)
        if not any(isinstance(handler, _Handler) for handler in logger.handlers):
            logger.addHandler(_Handler(StartReport.of_process()))
