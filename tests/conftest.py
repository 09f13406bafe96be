"""Set before anything imports TensorFlow: no start-up messages, one core for each of pytest's workers, quick compiling.

XLA's optimizations take a third of the time of all tests; `XLA_FLAGS= scripts/test` runs them with what runs have.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")
os.environ.setdefault("TF_NUM_INTEROP_THREADS", "1")
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true")
os.environ.setdefault("MPLBACKEND", "agg")
