"""Which sample is where. Pure: events and the time come in, actions come out."""
