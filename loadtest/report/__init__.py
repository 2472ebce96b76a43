"""Reports as pages: what is in them, their charts, and where they come from. A page needs no network and no script."""
