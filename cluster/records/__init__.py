"""Records of requests that have ended. `contract` lists what their store promises."""
