"""What asks a run to end (`stops`), how that is answered (`interrupt`), and how long ranks may take (`waiting`)."""
