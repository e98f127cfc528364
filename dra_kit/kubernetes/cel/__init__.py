"""The CEL dialect of device selectors, derived attributes and admission policies.

An expression passes through ``parser``, ``macros``, ``checker``, ``estimator`` and ``evaluator``. ``program``,
``explanation`` and ``admission`` are what other rooms use.
"""
