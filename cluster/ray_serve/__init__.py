"""Client of Ray Serve's REST API. Needs no Ray in this process."""
