"""What every process and every command shares: settings, messages, the wire, services, a run's folder, errors."""
