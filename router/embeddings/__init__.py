"""EmbeddingService: vectors, classes and scores of texts, through the same queue as generations."""
