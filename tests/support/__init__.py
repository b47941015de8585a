"""Peers, clocks and builders for tests. Nothing here replaces a module of relayd."""
