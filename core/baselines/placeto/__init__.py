"""Placeto (Addanki et al. 2019): a policy that improves placements, trained over graphs."""
