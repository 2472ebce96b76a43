"""Durable batches. `contract` lists what their store promises."""
