"""Routing: which experts a token visits, with what weight, and in what order their rows are computed."""

from pallas_kernels.routing.reference import (
    Groups,
    Route,
    Schedule,
    group_by_expert,
    route,
    schedule_rows,
    schedule_tiles,
)

__all__ = ["Groups", "Route", "Schedule", "group_by_expert", "route", "schedule_rows", "schedule_tiles"]
