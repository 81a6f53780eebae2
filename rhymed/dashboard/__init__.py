"""The dashboard: a page that shows a living or finished run, served beside the broker or by `rhymed view`."""
