"""From a model to the graph that trains it: backward pass, gradients, memory of the optimiser."""
