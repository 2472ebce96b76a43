"""Standbys: replicas that are loaded and take no work. They serve again within seconds, where a start takes minutes."""
