"""Policies on disk: loading for every command, and bundles for other machines."""
