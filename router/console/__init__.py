"""The console: a web page that shows what a cluster does. It is a client of the routers' public API."""
