"""The studies. A file here that defines ``ABLATION`` is a study; its name is the study's name."""
