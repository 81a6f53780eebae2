"""Manifests of Kubernetes, from the plan: plain objects in a kustomization. Pure: configuration to dictionaries."""
