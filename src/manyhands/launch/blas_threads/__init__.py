"""How many threads a rank's matrix products use (`count`), chosen by timing a few steps where nobody says (`trial`)."""
