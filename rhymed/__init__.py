"""What every rhymed process shares: configuration, messages, the wire, the frame of a service."""

__version__ = "0.1.0"
