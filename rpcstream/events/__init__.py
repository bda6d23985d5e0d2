"""Publish and subscribe: topics and patterns, retained values, and a bounded queue for each subscriber."""
