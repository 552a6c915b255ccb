"""What real runs and the speed of the cores tell about predictions."""
