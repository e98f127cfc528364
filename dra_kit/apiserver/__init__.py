"""An embedded Kubernetes API: objects in memory, real HTTP, the rules of Kubernetes 1.37.

:mod:`dra_kit.apiserver.server` starts one. Nothing is imported here: who only wants the rules needs no HTTP.
"""
