"""Engines of other people that test_engines.py asks to compute one model; one module an engine, each a command of its own."""
