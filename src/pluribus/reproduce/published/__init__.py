"""The papers' figures as data, as they are printed; and those of 2017 that others are compared with."""
