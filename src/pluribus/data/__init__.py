"""Data to train and evaluate on: `load` reads any of `DATA`, a folder, a table or an archive as a `Data`."""

from .catalogue import DATA, Data, Source, Split, data_folder, encoded, load

__all__ = ["DATA", "Data", "Source", "Split", "data_folder", "encoded", "load"]
