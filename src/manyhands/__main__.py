"""Run the command line by `python -m manyhands`."""

from manyhands.cli.main import main

main()
