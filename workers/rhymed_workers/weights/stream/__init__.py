"""Slices of weights over TCP connections of their own: fewer copies than over zmq, and faster encryption."""
