"""Settings of an alias: a name that callers use as a model, and that stands for one or several models."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Annotated, Literal

from pydantic import Field, model_validator

from cluster.settings.section import PoolName, Section

AdapterName = Annotated[str, Field(max_length=256)]
MOST_TARGETS = 16


class AliasTarget(Section):
    """Model of an alias, with its part of the requests."""

    model: PoolName
    """Name of the pool."""
    adapter: AdapterName = ""
    """LoRA adapter of the pool. Empty: the adapter that the request names, else the base model."""
    weight: float = Field(default=1.0, ge=0, le=1_000_000)
    """Part of the requests, relative to the other weights. 0 sends none."""


class ShadowSettings(Section):
    """Copies of requests, to try a model with. Nobody waits for them, and their output is dropped."""

    model: PoolName
    """Name of the pool."""
    adapter: AdapterName = ""
    """LoRA adapter of the pool. Empty: the adapter that the request names, else the base model."""
    share: float = Field(default=0.01, gt=0, le=1)
    """Part of the requests that are copied."""


class AliasSettings(Section):
    """Name that callers use as a model. It stands for one model, or for several with weights."""

    targets: Annotated[tuple[AliasTarget, ...], Field(min_length=1, max_length=MOST_TARGETS)]
    """Models that serve the requests."""
    sticky: Literal["session", "tenant", "none"] = "session"
    """What stays with its target while the weights stay. "session": requests of a tenant with the same session_id;
    those without one are drawn one by one. "tenant": all requests of a tenant. "none": nothing."""
    fallback: PoolName | None = None
    """Pool that gets a request when the target has no replica that takes work, or refuses the request because it could
    not start in time. Default: none, the request waits or is refused."""
    shadow: ShadowSettings | None = None
    """Copies for a model that is tried. Default: none."""

    @model_validator(mode="after")
    def _has_a_target(self) -> AliasSettings:
        if not any(target.weight for target in self.targets):
            raise ValueError("targets: at least one weight must be above 0, got only 0")
        seen = set[tuple[str, str]]()
        for number, target in enumerate(self.targets):
            if (target.model, target.adapter) in seen:
                adapter = f" with adapter {target.adapter!r}" if target.adapter else ""
                raise ValueError(f"targets[{number}].model: {target.model!r}{adapter} is a target already")
            seen.add((target.model, target.adapter))
        return self

    def problems(self, name: str, pools: Collection[str]) -> Iterator[tuple[str, str]]:
        """Yield what does not fit the rest of the settings, as field and problem. An empty field is the alias itself.

        Args:
            name: name of the alias.
            pools: names of all pools. An alias can't stand for another alias.
        """
        if name in pools:
            yield "", f"{name!r} is the name of a pool"
        used = [(f"targets[{number}].model", target.model) for number, target in enumerate(self.targets)]
        used += [("fallback", self.fallback)] if self.fallback is not None else []
        used += [("shadow.model", self.shadow.model)] if self.shadow is not None else []
        for field, model in used:
            if model not in pools:
                yield field, f"must be one of the pools {', '.join(pools)}, got {model!r}"
