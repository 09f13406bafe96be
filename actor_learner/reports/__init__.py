"""The live view, plots and reports of runs."""
