"""What a person moves a robot with, and how that becomes commands."""
