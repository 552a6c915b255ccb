"""How many BLAS threads a rank uses (`count`), chosen by timing a few steps if the user does not say (`trial`)."""
