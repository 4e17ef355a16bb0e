"""Vocabulary shared by every layer: plain frozen data and protocols, no I/O, no numpy, no torch."""
