"""Workers that are no threads of this process: processes, or actors of Ray."""
