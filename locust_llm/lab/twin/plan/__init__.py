"""Plan: finds the replicas that meet an SLO with one lost, their cost, and when to add or remove
one.

Read first: replica_plan.py (the load of a day, the capacity of one replica, the cost).
"""
