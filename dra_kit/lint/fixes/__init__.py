"""What ``lint --fix`` writes: edits of a file's text at the places of findings, and nothing else of the file.

A rule that is sure of what is intended says so as a :mod:`remedy <dra_kit.lint.fixes.remedy>`, in fields and values.
:mod:`making` finds the characters that it changes, by :mod:`blocks`, :mod:`flows` and :mod:`scalars`; :mod:`mending`
applies what does not overlap, until nothing is left to be done.
"""
