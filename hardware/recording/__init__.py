"""What happens on the bridge, as episodes on disk that survive whatever is killed: docs/recording.md."""
