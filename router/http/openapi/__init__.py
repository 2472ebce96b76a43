"""Description of the HTTP API: an OpenAPI document, and a page to try it."""
