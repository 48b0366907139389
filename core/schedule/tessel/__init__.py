"""The published search for schedules of that name, for comparison; see `solve`."""
