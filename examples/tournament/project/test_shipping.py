"""Tests of costs of shipping."""

# ruff: noqa: D102, PT009

import unittest

from shipping import shipping


class TestShipping(unittest.TestCase):
    """Tests of the limit."""

    def test_a_cheap_cart(self) -> None:
        self.assertEqual(shipping(4999), 490)

    def test_the_limit_itself_is_free(self) -> None:
        self.assertEqual(shipping(5000), 0)
