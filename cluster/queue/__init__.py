"""The waiting room: requests wait here for a place on a replica. `contract` says what it promises."""
