"""Records of requests that have ended, for `penstock explain`, the console and traces."""
