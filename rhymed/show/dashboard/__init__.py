"""The dashboard: a web page of a living or finished run, served by a child of the broker or by `rhymed view`."""
