"""The ablation studies: each file here defines ``ABLATION``, and its name is the study's name."""
