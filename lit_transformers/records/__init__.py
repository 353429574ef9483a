"""The files of runs and studies on disk: their names, and the contents of a record and a plan. Imports no torch."""
