"""Tests of receipts."""

# ruff: noqa: D102, PT009

import unittest

from receipt import euros


class TestEuros(unittest.TestCase):
    """Tests of prices as text."""

    def test_two_decimals(self) -> None:
        self.assertEqual(euros(1990), "19.90 EUR")
