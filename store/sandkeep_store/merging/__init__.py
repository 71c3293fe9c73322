"""Comparison and merge of directory trees that are given as overlay stacks."""
