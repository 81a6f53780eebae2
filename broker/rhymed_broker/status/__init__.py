"""What people see of a run: snapshot, diagnostics, timeline."""
