"""Data: where labeled images come from, how they are split, transformed and batched, and the embedded dataset."""
