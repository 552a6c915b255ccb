"""The largest part of a step that several workers need beyond an even share of one worker's step, in a few words."""

from manyhands.reproduction.base import Values

WORDS = {
    "comm_ms": "to communication",
    "wait_ms": "to waiting for the slowest worker",
    "serial_ms": "to the optimiser's step and the loop around it, which every worker repeats",
    "compute_ms": "to computing slower than one worker alone, beside the others",
}
IN_SMALLER_BATCHES = " and in smaller batches"


def where_time_went(own: Values, alone: Values, workers: int) -> str:
    """Say what cost most; nothing where the runs did not tell, or nothing was lost."""
    if any(name not in values for name in (*WORDS, "step_ms", "batch_size") for values in (own, alone)):
        return ""
    share = own["batch_size"] / workers / alone["batch_size"]
    lost = {name: 100 * (own[name] - alone[name] * share) / own["step_ms"] for name in WORDS}
    most = max(lost, key=lambda name: lost[name])
    smaller = IN_SMALLER_BATCHES if most == "compute_ms" and share < 1 else ""
    return f"{lost[most]:.0f} % of a step went {WORDS[most]}{smaller}" if lost[most] > 0 else ""
