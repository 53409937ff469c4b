"""Operator API and monitoring endpoints."""
