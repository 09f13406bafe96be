QUICK_XLA = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
"""Flags of XLA with which compiling takes less time, and computing more."""
