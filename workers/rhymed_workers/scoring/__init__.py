"""The scoring process and its jail, as the child sees them."""
