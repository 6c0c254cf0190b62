"""Tools for the workshop, not for the pod: simulate an engine, load one, plan one. Extra ``vllm-sidecar[lab]``."""
