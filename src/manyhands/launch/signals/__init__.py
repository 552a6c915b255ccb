"""Which signals stop a run (`stops`), how they are answered (`interrupt`), how long ranks may take (`waiting`)."""
