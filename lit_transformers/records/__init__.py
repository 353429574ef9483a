"""What runs and studies leave on disk: the names of files, and what is in a record and a plan. Imports no torch."""
