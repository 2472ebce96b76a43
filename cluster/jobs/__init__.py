"""Durable batches. `contract` says what their store promises."""
