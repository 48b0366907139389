"""Files and words that options name: devices, costs, links, orders, rules."""
