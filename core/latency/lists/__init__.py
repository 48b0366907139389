"""List schedules: tasks by rank, on devices with room, transfers as the cost model has them."""
