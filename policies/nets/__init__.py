"""Networks that policies are built of."""
