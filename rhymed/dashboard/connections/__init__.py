"""The dashboard's connections: how many there may be, which gives way, how long one may be silent, what is logged."""
