"""Routing: which experts a token visits, with what weight, and in what order their rows are computed."""

from pallas_kernels.routing.reference import Groups, Route, group_by_expert, route

__all__ = ["Groups", "Route", "group_by_expert", "route"]
