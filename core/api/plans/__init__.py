"""From a stream and options to the problem of a split, and plans that are given or compared."""
