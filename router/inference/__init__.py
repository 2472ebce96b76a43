"""InferenceService: from a checked request to the events of its stream."""
