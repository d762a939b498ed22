"""Deploy: what a run needs elsewhere: manifests for a cluster, and its report copied to a store.

Read first: kubernetes.py (what a cluster is told), then command.py (how it is made of a command line). The
sender and the control know nothing of it.
"""
