"""Tables and figures of the four papers, for `make -C samples`."""
