"""The cost of compute and communication on machines that one may not have."""
