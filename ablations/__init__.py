"""The questions: what is varied, what is held, what counts as an answer. One file in ``studies`` asks one."""
