"""Parts of the optimiser's step: groups of weights, state, norm of the gradient, rates."""
