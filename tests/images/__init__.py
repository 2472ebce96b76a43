"""`make images-check`: carries out every instruction of the images' files without Docker, and starts what comes out."""
