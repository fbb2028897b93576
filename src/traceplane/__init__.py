"""Traceplane."""
