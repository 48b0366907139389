"""Workers outside this process: processes of this machine, or actors of Ray."""
