"""Records a robot's message streams as episodes on disk that survive a crash: docs/recording.md."""
