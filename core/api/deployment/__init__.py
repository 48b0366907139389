"""From a plan to what runs: its parts as models, and the samples that go through them."""
