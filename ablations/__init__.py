"""Ablation studies: what is varied, what is held fixed and which metric decides. Each file in ``studies`` is one."""
