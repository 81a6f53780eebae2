TRL = {}
