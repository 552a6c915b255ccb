"""Write the golden losses anew, after a change that is meant to change them: `python tests/golden/regenerate.py`.

Give names of tasks to write only theirs. Look at the difference that git shows before you commit it.
"""

import sys

from runs import RUNS, file_of, losses_of


def main() -> None:
    """Train each task and write "step loss" lines."""
    for task in sys.argv[1:] or RUNS:
        settings = " ".join(f"{key}={value}" for key, value in RUNS[task].items())
        lines = [f"{step} {loss:.7g}" for step, loss in enumerate(losses_of(task), 1)]
        file_of(task).write_text(f"# {task} {settings} seed=1\n" + "\n".join(lines) + "\n")
        print(f"{file_of(task)}: {lines[0]} … {lines[-1]}", file=sys.stderr)


if __name__ == "__main__":
    main()
