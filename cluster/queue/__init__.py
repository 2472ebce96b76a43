"""The queue: requests wait here for a place on a replica. `contract` lists what it promises."""
