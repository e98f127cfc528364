"""Validation of the kinds of resource.k8s.io, with the API server's rules, paths and texts.

Source: Kubernetes 1.37 ``pkg/apis/resource/validation``, compared with recorded answers of its API server.
"""
