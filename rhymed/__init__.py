"""Code that all processes share (configuration, messages, wire, services), and the applications: one folder each."""

__version__ = "0.1.0"
