"""Answers that outlive their connection. `contract` lists what their store promises."""
