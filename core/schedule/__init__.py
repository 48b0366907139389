"""Pipeline schedules: what runs where and when, micro-batch after micro-batch."""
