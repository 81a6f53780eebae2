"""Tools and environments: what answers a sample's turns, in processes that can be killed."""
