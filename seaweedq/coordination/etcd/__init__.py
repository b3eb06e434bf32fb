"""Coordination in etcd."""
