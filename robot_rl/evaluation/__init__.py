"""Evaluation: success rates on saved initial states, their statistics, and videos."""
