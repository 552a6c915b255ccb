"""Reports drawn from stored records: tables, words, figures, one HTML page. Needs neither torch nor MPI."""

from manyhands.report.files import write, write_runs

__all__ = ["write", "write_runs"]
