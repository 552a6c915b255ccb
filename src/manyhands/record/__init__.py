"""Records: the results of runs, sweeps, profiles, simulations, …, and their store. Needs neither torch nor MPI."""
