"""Task-adaptive pretraining (TAPT): masked language modelling on a task's own texts, before tuning.

Gururangan et al. 2020 (arXiv:2004.10964), sec. 4; with adapters only the adapters move, as in He
et al. 2021 (arXiv:2106.03164), sec. 3.1.
"""
