"""Tests of carts."""

# ruff: noqa: D102, PT009

import unittest

from cart import discounted, total


class TestTotal(unittest.TestCase):
    """Tests of totals."""

    def test_an_empty_cart_costs_nothing(self) -> None:
        self.assertEqual(total([]), 0)

    def test_quantities_count(self) -> None:
        self.assertEqual(total([("tea", 2, 350), ("cup", 1, 800)]), 1500)


class TestDiscount(unittest.TestCase):
    """Tests of discounts."""

    def test_none(self) -> None:
        self.assertEqual(discounted(1000, 0), 1000)

    def test_a_part(self) -> None:
        self.assertEqual(discounted(1000, 15), 850)
