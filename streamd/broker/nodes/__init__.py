"""Nodes: servers that share a tier, of which one leads and the others stand by."""
