"""Performance models: the cost of compute and communication on machines that may not exist."""
