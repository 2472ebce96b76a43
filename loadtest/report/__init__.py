"""Charts as SVG, for pages that need no library and no network."""
