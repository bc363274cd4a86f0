"""What acts: base policies learned from demonstrations, and the wrappers that RL trains around them.

It knows neither environments nor hardware: tensors in, tensors out.
"""
