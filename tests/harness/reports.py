"""A report as agents send it."""

REPORT = {
    "version": "1",
    "host": "one",
    "since": "2026-01-01T12:00:00+00:00",
    "heartbeat": 1000,
    "unapplied": [],
    "sightings": [],
    "whole": True,
}
