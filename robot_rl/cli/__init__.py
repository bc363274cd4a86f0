"""The command line: from `key=value` to typed configurations, help and error messages."""
