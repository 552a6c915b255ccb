"""The largest part of a step that several workers need beyond an even share of one worker's step, in a few words."""

from manyhands.lab.papers.base import Values

WORDS = {
    "comm_ms": "to communication",
    "wait_ms": "to waiting for the slowest worker",
    "serial_ms": "to the optimiser's step and the loop around it, which every worker repeats",
    "compute_ms": "to computing slower than one worker alone, in smaller batches and beside the others",
}


def where_time_went(own: Values, alone: Values, workers: int) -> str:
    """Say what cost most; nothing where the runs did not tell, or nothing was lost."""
    if any(name not in values for name in (*WORDS, "step_ms", "batch_size") for values in (own, alone)):
        return ""
    share = own["batch_size"] / workers / alone["batch_size"]
    lost = {name: 100 * (own[name] - alone[name] * share) / own["step_ms"] for name in WORDS}
    most = max(lost, key=lambda name: lost[name])
    return f"{lost[most]:.0f} % of a step went {WORDS[most]}" if lost[most] > 0 else ""
