"""The programs that measure this project, each beside its results. `scripts/measure` lists and runs them."""
