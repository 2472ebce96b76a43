"""Reads the streams of a client under test."""

from penstock import client as api


async def collect(stream) -> list[api.Event]:
    return [event async for event in stream]


def kinds(events: list[api.Event]) -> list[str]:
    return [type(event).__name__ for event in events]
