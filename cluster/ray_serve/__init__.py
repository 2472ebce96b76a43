"""Ray Serve as its REST API offers it. Needs no Ray in this process."""
