"""Roll-outs as routers see them: they move them on, and take orders for them."""
